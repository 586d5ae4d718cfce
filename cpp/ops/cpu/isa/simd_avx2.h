// Eight floats in AVX2 and FMA, behind the names that vector_kernels.h is written in. Included by one file only.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace fastllm::ops::cpu {
namespace {

using Vec = __m256;
constexpr int kLanes = 8;
constexpr int kMaxRows = 2;  // rows of the attention value tile: 2 x 4 accumulators of the 16 registers

inline Vec Set(float x) { return _mm256_set1_ps(x); }
inline Vec Load(const float* p) { return _mm256_loadu_ps(p); }
inline void Store(float* p, Vec v) { _mm256_storeu_ps(p, v); }
inline __m256i FirstLanes(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
// The first n lanes; the others are 0 (LoadFirst) or left alone in memory (StoreFirst).
inline Vec LoadFirst(const float* p, int n) { return _mm256_maskload_ps(p, FirstLanes(n)); }
inline void StoreFirst(float* p, Vec v, int n) { _mm256_maskstore_ps(p, FirstLanes(n), v); }
// kLanes values of 16 bits, widened exactly, or rounded to nearest even and stored.
inline Vec LoadF16(const uint16_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
inline Vec LoadBF16(const uint16_t* p) {
  const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16));
}
inline Vec LoadI8(const int8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
inline void StoreF16(uint16_t* p, Vec v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
// A NaN stays one: its upper half is kept with the quiet bit set.
inline void StoreBF16(uint16_t* p, Vec v) {
  const __m256i bits = _mm256_castps_si256(v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, odd), _mm256_set1_epi32(0x7FFF));
  const __m256i nan = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  const __m256i upper = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, nan, is_nan), 16);
  const __m256i packed = _mm256_packus_epi32(upper, upper);  // in 128-bit halves
  const __m256i joined = _mm256_permute4x64_epi64(packed, 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(joined));
}
inline Vec Add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
inline Vec Sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
inline Vec Mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
inline Vec Div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
inline Vec Fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }      // a b + c
inline Vec FmaSub(Vec a, Vec b, Vec c) { return _mm256_fmsub_ps(a, b, c); }   // a b - c
inline Vec NegFma(Vec a, Vec b, Vec c) { return _mm256_fnmadd_ps(a, b, c); }  // c - a b
inline Vec Reciprocal(Vec a) { return Div(Set(1.0f), a); }
// b when either is NaN.
inline Vec Max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
inline Vec Min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
inline Vec Round(Vec a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
// Bit i is set where a[i] >= b[i]; where a[i] is NaN.
inline uint32_t MaskGe(Vec a, Vec b) { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GE_OQ)); }
inline uint32_t MaskGt(Vec a, Vec b) { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)); }
inline uint32_t MaskNan(Vec a) { return _mm256_movemask_ps(_mm256_cmp_ps(a, a, _CMP_UNORD_Q)); }
// Lane i of a where bit i of mask is set, else 0 (Keep) or lane i of b (Select). Bits above the lanes mean nothing.
inline __m256 LanesOf(uint32_t mask) {
  const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i set = _mm256_and_si256(_mm256_set1_epi32(static_cast<int32_t>(mask)), bit);
  return _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, bit));
}
inline Vec Keep(Vec a, uint32_t mask) { return _mm256_and_ps(a, LanesOf(mask)); }
inline Vec Select(uint32_t mask, Vec a, Vec b) { return _mm256_blendv_ps(b, a, LanesOf(mask)); }

// Writes the lanes of v and their indices base + lane where mask is set, packed; returns how many.
inline int StorePacked(float* values, int32_t* ids, Vec v, int32_t base, uint32_t mask) {
  alignas(32) float lanes[kLanes];
  _mm256_store_ps(lanes, v);
  int n = 0;
  for (; mask != 0; mask &= mask - 1, ++n) {
    const int lane = __builtin_ctz(mask);
    values[n] = lanes[lane];
    ids[n] = base + lane;
  }
  return n;
}

// a 2^n for whole n in [-252, 254], rounded once: 2^n is split so that subnormal and infinite results come out right.
inline Vec ScaleByPowerOf2(Vec a, Vec n) {
  const __m256i whole = _mm256_cvtps_epi32(n);
  const __m256i half = _mm256_srai_epi32(whole, 1);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256i lo = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
  const __m256i hi = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(whole, half), bias), 23);
  return _mm256_mul_ps(_mm256_mul_ps(a, _mm256_castsi256_ps(lo)), _mm256_castsi256_ps(hi));
}

inline float ReduceMax(Vec a) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
}

inline float ReduceAdd(Vec a) {
  __m128 m = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  m = _mm_add_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_add_ss(m, _mm_shuffle_ps(m, m, 1)));
}

// Lane i of the result is the sum of the lanes of a[i], each by the same tree of additions.
inline Vec SumEach(const Vec a[kLanes]) {
  __m256 quads[2];
  for (int i = 0; i < 2; ++i) {
    const __m256 x =
        _mm256_add_ps(_mm256_unpacklo_ps(a[4 * i], a[4 * i + 1]), _mm256_unpackhi_ps(a[4 * i], a[4 * i + 1]));
    const __m256 y =
        _mm256_add_ps(_mm256_unpacklo_ps(a[4 * i + 2], a[4 * i + 3]), _mm256_unpackhi_ps(a[4 * i + 2], a[4 * i + 3]));
    const __m256d xd = _mm256_castps_pd(x);
    const __m256d yd = _mm256_castps_pd(y);
    quads[i] =
        _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(xd, yd)), _mm256_castpd_ps(_mm256_unpackhi_pd(xd, yd)));
  }
  return _mm256_add_ps(_mm256_permute2f128_ps(quads[0], quads[1], 0x20),
                       _mm256_permute2f128_ps(quads[0], quads[1], 0x31));
}

// x = even[0] odd[0] even[1] odd[1] ... : the same with each pair swapped, and n/2 values with each one doubled.
inline Vec SwapPairs(Vec a) { return _mm256_permute_ps(a, 0xB1); }
inline Vec LoadDoubled(const float* p) {
  const __m128 h = _mm_loadu_ps(p);
  return _mm256_set_m128(_mm_unpackhi_ps(h, h), _mm_unpacklo_ps(h, h));
}
// a b - c in even lanes, a b + c in odd lanes.
inline Vec FmaAddSub(Vec a, Vec b, Vec c) { return _mm256_fmaddsub_ps(a, b, c); }

}  // namespace
}  // namespace fastllm::ops::cpu
