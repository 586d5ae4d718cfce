// The products of the quantised linear with AVX-512 VNNI: a panel's 16 rows are the lanes of a vector, and vpdpbusd
// takes four values of k at once. See quant_kernels.h for the layout of rows and contract/quant_weight.h for that of
// weights.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "ops/cpu/isa/vnni_ahead.h"
#include "ops/cpu/isa/vnni_planes.h"

namespace fastllm::ops::cpu {
namespace {

template <bool kFloat>
inline __m512 LoadScales(const uint8_t* plane, int64_t index) {
  if constexpr (kFloat) return _mm512_loadu_ps(plane + 64 * index);
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(plane + 32 * index)));
}

// The four values of k that row r has in group g.
template <int R>
inline __m512i Values(const int8_t* q, int64_t g, int r) {
  int32_t four;
  __builtin_memcpy(&four, q + (g * R + r) * 4, sizeof(four));
  return _mm512_set1_epi32(four);
}

// acc[r] += w times values of k, group g.
template <int R>
inline void Dot(__m512i w, const int8_t* q, int64_t g, __m512i* acc) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) acc[r] = _mm512_dpbusd_epi32(acc[r], w, Values<R>(q, g, r));
}

// Groups [8 b + first, 8 b + first + count) of a block of 8-bit weights.
template <int R>
inline void DotBytes(const Panel& w, const RowTile& x, int64_t b, int first, int count, __m512i* acc) {
#pragma GCC unroll 8
  for (int g = first; g < first + count; ++g) {
    Dot<R>(_mm512_loadu_si512(w.low + (b * 8 + g) * 64), x.q, b * 8 + g, acc);
  }
}

// A block of weights of 4 bits, or 5 with the upper ones in w.high.
template <int R, bool kFive>
inline void DotNibbles(const Panel& w, const RowTile& x, int64_t b, __m512i* acc) {
  const __m512i mask = _mm512_set1_epi8(15);
  const __m512i fifth = _mm512_set1_epi8(16);
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m512i both = _mm512_loadu_si512(w.low + (b * 4 + j) * 64);
    __m512i low = _mm512_and_si512(both, mask);
    __m512i high = _mm512_and_si512(_mm512_srli_epi16(both, 4), mask);
    if constexpr (kFive) {
      uint64_t bits[2];
      __builtin_memcpy(&bits[0], w.high + (b * 8 + j) * 8, 8);
      __builtin_memcpy(&bits[1], w.high + (b * 8 + 4 + j) * 8, 8);
      low = _mm512_mask_add_epi8(low, bits[0], low, fifth);
      high = _mm512_mask_add_epi8(high, bits[1], high, fifth);
    }
    Dot<R>(low, x.q, b * 8 + j, acc);
    Dot<R>(high, x.q, b * 8 + 4 + j, acc);
  }
}

// Half h of a block of 4 or 5 bits: the low or the high halves of the bytes.
template <int R, bool kFive>
inline void DotHalf(const Panel& w, const RowTile& x, int64_t b, int h, __m512i* acc) {
  const __m512i mask = _mm512_set1_epi8(15);
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m512i both = _mm512_loadu_si512(w.low + (b * 4 + j) * 64);
    __m512i v = _mm512_and_si512(h == 0 ? both : _mm512_srli_epi16(both, 4), mask);
    if constexpr (kFive) {
      uint64_t bits;
      __builtin_memcpy(&bits, w.high + (b * 8 + 4 * h + j) * 8, 8);
      v = _mm512_mask_add_epi8(v, bits, v, _mm512_set1_epi8(16));
    }
    Dot<R>(v, x.q, b * 8 + 4 * h + j, acc);
  }
}

// sum[r] += float(acc[r]) * (d * scale of the row)
template <int R>
inline void AddScaled(const __m512i* acc, __m512 d, const float* scale, __m512* sum) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    sum[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[r]), _mm512_mul_ps(d, _mm512_set1_ps(scale[r])), sum[r]);
  }
}

template <int R>
inline void Start(const int32_t* shift, __m512i* acc) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) acc[r] = _mm512_set1_epi32(shift[r]);
}

// Integer sums of half h of a block.
template <QuantFormat F, int R>
inline void Half(const Panel& w, const RowTile& x, int64_t b, int h, __m512i* acc) {
  constexpr QuantTraits t = TraitsOf(F);
  if constexpr (t.bits == 8) {
    DotBytes<R>(w, x, b, 4 * h, 4, acc);
  } else {
    DotHalf<R, t.bits == 5>(w, x, b, h, acc);
  }
}

// kFine: x has a scale for each half of a block.
template <QuantFormat F, int R, bool kFine>
inline void SumBlock(const Panel& w, const RowTile& x, int64_t b, __m512* sum) {
  constexpr QuantTraits t = TraitsOf(F);
  __m512i acc[R];
  const auto start = [&](int64_t row) {
    if constexpr (t.has_min) {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) acc[r] = _mm512_setzero_si512();
    } else {
      Start<R>(x.shift + row * R, acc);
    }
  };
  if constexpr (kFine && t.group == 32) {
    __m512 part[R];
    start(2 * b);
    Half<F, R>(w, x, b, 0, acc);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      part[r] = _mm512_mul_ps(_mm512_cvtepi32_ps(acc[r]), _mm512_set1_ps(x.scale[2 * b * R + r]));
    }
    start(2 * b + 1);
    Half<F, R>(w, x, b, 1, acc);
    const __m512 d = LoadScales<t.float_scale>(w.d, b);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const __m512 scale = _mm512_set1_ps(x.scale[(2 * b + 1) * R + r]);
      sum[r] = _mm512_fmadd_ps(_mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[r]), scale, part[r]), d, sum[r]);
    }
  } else if constexpr (t.group == 16) {
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      start(2 * b + h);
      Half<F, R>(w, x, b, h, acc);
      AddScaled<R>(acc, LoadScales<t.float_scale>(w.d, 2 * b + h), x.scale + (kFine ? 2 * b + h : b) * R, sum);
    }
  } else {
    start(b);
    if constexpr (t.bits == 8) {
      DotBytes<R>(w, x, b, 0, 8, acc);
    } else {
      DotNibbles<R, t.bits == 5>(w, x, b, acc);
    }
    AddScaled<R>(acc, LoadScales<t.float_scale>(w.d, b), x.scale + b * R, sum);
  }
  if constexpr (t.has_min) {
    const __m512 m = LoadScales<t.float_scale>(w.m, b);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sum[r] = _mm512_fmadd_ps(m, _mm512_set1_ps(x.sum[b * R + r]), sum[r]);
  }
}

template <QuantFormat F, int R, bool kFine>
inline void SumTile(const Panel& w, const RowTile& x, int64_t blocks, const Ahead& ahead, __m512* sum) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) sum[r] = _mm512_setzero_ps();
  for (int64_t b = 0; b < blocks; ++b) {
    if (ahead.panel != nullptr) Prefetch<F>(ahead, b, blocks);
    SumBlock<F, R, kFine>(w, x, b, sum);
  }
}

}  // namespace
}  // namespace fastllm::ops::cpu
