// Sixteen floats in AVX-512, behind the names that vector_kernels.h is written in. Included by one file only.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace fastllm::ops::cpu {
namespace {

using Vec = __m512;
constexpr int kLanes = 16;
constexpr int kMaxRows = 4;  // rows of the attention value tile: 4 x 4 accumulators of the 32 registers

inline Vec Set(float x) { return _mm512_set1_ps(x); }
inline Vec Load(const float* p) { return _mm512_loadu_ps(p); }
inline void Store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
inline __mmask16 FirstLanes(int n) { return static_cast<__mmask16>((1u << n) - 1); }
// The first n lanes; the others are 0 (LoadFirst) or left alone in memory (StoreFirst).
inline Vec LoadFirst(const float* p, int n) { return _mm512_maskz_loadu_ps(FirstLanes(n), p); }
inline void StoreFirst(float* p, Vec v, int n) { _mm512_mask_storeu_ps(p, FirstLanes(n), v); }
// kLanes values of 16 bits, widened exactly, or rounded to nearest even and stored.
inline Vec LoadF16(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline Vec LoadBF16(const uint16_t* p) {
  const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
}
inline Vec LoadI8(const int8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
inline void StoreF16(uint16_t* p, Vec v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
// A NaN stays one: its upper half is kept with the quiet bit set.
inline void StoreBF16(uint16_t* p, Vec v) {
  const __m512i bits = _mm512_castps_si512(v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, odd), _mm512_set1_epi32(0x7FFF));
  const __m512i nan = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const __m512i chosen = _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), nan);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(chosen, 16)));
}
inline Vec Add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
inline Vec Sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
inline Vec Mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
inline Vec Div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
inline Vec Fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }      // a b + c
inline Vec FmaSub(Vec a, Vec b, Vec c) { return _mm512_fmsub_ps(a, b, c); }   // a b - c
inline Vec NegFma(Vec a, Vec b, Vec c) { return _mm512_fnmadd_ps(a, b, c); }  // c - a b
// 1 / a within 2^-23, for 1 <= a < 2^126.
inline Vec Reciprocal(Vec a) {
  const Vec r = _mm512_rcp14_ps(a);
  return Fma(r, NegFma(a, r, Set(1.0f)), r);
}
// b when either is NaN.
inline Vec Max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
inline Vec Min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
inline Vec Round(Vec a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
// Bit i is set where a[i] >= b[i]; where a[i] is NaN.
inline uint32_t MaskGe(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
inline uint32_t MaskGt(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
inline uint32_t MaskNan(Vec a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
// Lane i of a where bit i of mask is set, else 0 (Keep) or lane i of b (Select). Bits above the lanes mean nothing.
inline Vec Keep(Vec a, uint32_t mask) { return _mm512_maskz_mov_ps(static_cast<__mmask16>(mask), a); }
inline Vec Select(uint32_t mask, Vec a, Vec b) { return _mm512_mask_mov_ps(b, static_cast<__mmask16>(mask), a); }

// Writes the lanes of v and their indices base + lane where mask is set, packed; returns how many. Writes whole
// vectors: kLanes elements from values and ids must be writable.
inline int StorePacked(float* values, int32_t* ids, Vec v, int32_t base, uint32_t mask) {
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __mmask16 m = static_cast<__mmask16>(mask);
  _mm512_storeu_ps(values, _mm512_maskz_compress_ps(m, v));
  _mm512_storeu_si512(ids, _mm512_maskz_compress_epi32(m, _mm512_add_epi32(lane, _mm512_set1_epi32(base))));
  return __builtin_popcount(mask);
}

// a 2^n for whole n, rounded once.
inline Vec ScaleByPowerOf2(Vec a, Vec n) { return _mm512_scalef_ps(a, n); }

inline float ReduceMax(Vec a) { return _mm512_reduce_max_ps(a); }
inline float ReduceAdd(Vec a) { return _mm512_reduce_add_ps(a); }

// Lane i of the result is the sum of the lanes of a[i], each by the same tree of additions.
inline Vec SumEach(const Vec a[kLanes]) {
  __m512 quads[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512 x =
        _mm512_add_ps(_mm512_unpacklo_ps(a[4 * i], a[4 * i + 1]), _mm512_unpackhi_ps(a[4 * i], a[4 * i + 1]));
    const __m512 y =
        _mm512_add_ps(_mm512_unpacklo_ps(a[4 * i + 2], a[4 * i + 3]), _mm512_unpackhi_ps(a[4 * i + 2], a[4 * i + 3]));
    const __m512d xd = _mm512_castps_pd(x);
    const __m512d yd = _mm512_castps_pd(y);
    quads[i] =
        _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(xd, yd)), _mm512_castpd_ps(_mm512_unpackhi_pd(xd, yd)));
  }
  const __m512 p =
      _mm512_add_ps(_mm512_shuffle_f32x4(quads[0], quads[1], 0x44), _mm512_shuffle_f32x4(quads[0], quads[1], 0xEE));
  const __m512 q =
      _mm512_add_ps(_mm512_shuffle_f32x4(quads[2], quads[3], 0x44), _mm512_shuffle_f32x4(quads[2], quads[3], 0xEE));
  return _mm512_add_ps(_mm512_shuffle_f32x4(p, q, 0x88), _mm512_shuffle_f32x4(p, q, 0xDD));
}

// x = even[0] odd[0] even[1] odd[1] ... : the same with each pair swapped, and n/2 values with each one doubled.
inline Vec SwapPairs(Vec a) { return _mm512_permute_ps(a, 0xB1); }
inline Vec LoadDoubled(const float* p) {
  const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  return _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(_mm256_loadu_ps(p)));
}
// a b - c in even lanes, a b + c in odd lanes.
inline Vec FmaAddSub(Vec a, Vec b, Vec c) { return _mm512_fmaddsub_ps(a, b, c); }

}  // namespace
}  // namespace fastllm::ops::cpu
