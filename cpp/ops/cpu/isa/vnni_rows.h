// Rows of x to 8 bits with AVX-512 VNNI, in the layout of quant_kernels.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "ops/cpu/quant_kernels.h"

namespace fastllm::ops::cpu {
namespace {

constexpr float kLeastMax = 1e-30f;  // as in the plain arm

inline __m512i Magnitude(__m512 x) { return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7FFFFFFF)); }

// The largest magnitude, compared as integers, so that a NaN is above all numbers.
inline float MaxOf(__m512i magnitudes) {
  const int32_t bits = _mm512_reduce_max_epi32(magnitudes);
  float amax;
  __builtin_memcpy(&amax, &bits, sizeof(amax));
  return amax;
}

// q of 16 values; a NaN saturates to -128.
inline __m128i RoundValues(__m512 x, float amax) {
  const __m512 inverse = _mm512_set1_ps(amax >= kLeastMax ? 127.0f / amax : 0.0f);
  return _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(x, inverse)));
}

inline int32_t SumOf(__m128i bytes) {
  __m128i quads = _mm_dpbusd_epi32(_mm_setzero_si128(), _mm_set1_epi8(1), bytes);
  quads = _mm_add_epi32(quads, _mm_shuffle_epi32(quads, 0x4E));
  return _mm_cvtsi128_si32(_mm_add_epi32(quads, _mm_shuffle_epi32(quads, 0xB1)));
}

inline void StoreShifts(const QuantRows& rows, int64_t at, int32_t sum) {
  if (rows.shift8 != nullptr) rows.shift8[at] = -8 * sum;
  if (rows.shift16 != nullptr) rows.shift16[at] = -16 * sum;
  if (rows.shift128 != nullptr) rows.shift128[at] = -128 * sum;
}

// Block b of row `tile + r` of a tile of `count`.
inline void QuantizeBlock(__m512 x0, __m512 x1, const QuantRows& rows, int64_t tile, int32_t count, int32_t r,
                          int64_t b) {
  float amax[2];
  if (rows.fine) {
    amax[0] = MaxOf(Magnitude(x0));
    amax[1] = MaxOf(Magnitude(x1));
  } else {
    amax[0] = amax[1] = MaxOf(_mm512_max_epi32(Magnitude(x0), Magnitude(x1)));
  }
  const __m128i q0 = RoundValues(x0, amax[0]);
  const __m128i q1 = RoundValues(x1, amax[1]);
  alignas(32) int8_t q[kQuantBlock];
  _mm_store_si128(reinterpret_cast<__m128i*>(q), q0);
  _mm_store_si128(reinterpret_cast<__m128i*>(q + 16), q1);
  int8_t* to = rows.q + tile * rows.k + b * kQuantBlock * count + r * 4;
  if (count == 1) {
    __builtin_memcpy(to, q, kQuantBlock);
  } else {
#pragma GCC unroll 8
    for (int g = 0; g < 8; ++g) __builtin_memcpy(to + int64_t{4} * g * count, q + 4 * g, 4);
  }
  const int64_t blocks = rows.k / kQuantBlock;
  const int64_t at = tile * blocks + b * count + r;
  const int64_t half = 2 * tile * blocks + 2 * b * count + r;
  const int32_t sum[2] = {SumOf(q0), SumOf(q1)};
  if (rows.shift32 != nullptr) {
    rows.shift32[half] = -32 * sum[0];
    rows.shift32[half + count] = -32 * sum[1];
  }
  if (rows.fine) {
    const float scale[2] = {amax[0] / 127.0f, amax[1] / 127.0f};
    rows.scale[half] = scale[0];
    rows.scale[half + count] = scale[1];
    StoreShifts(rows, half, sum[0]);
    StoreShifts(rows, half + count, sum[1]);
    if (rows.sum == nullptr) return;
    rows.sum[at] = scale[0] * static_cast<float>(sum[0]) + scale[1] * static_cast<float>(sum[1]);
    return;
  }
  const float scale = amax[0] / 127.0f;
  rows.scale[at] = scale;
  StoreShifts(rows, at, sum[0] + sum[1]);
  if (rows.sum != nullptr) rows.sum[at] = scale * static_cast<float>(sum[0] + sum[1]);
}

void Quantize(const float* x, const QuantRows& rows, int32_t tile, int32_t count, int32_t row) {
  for (int64_t b = 0; b < rows.k / kQuantBlock; ++b) {
    const float* values = x + int64_t{row} * rows.k + b * kQuantBlock;
    QuantizeBlock(_mm512_loadu_ps(values), _mm512_loadu_ps(values + 16), rows, tile, count, row - tile, b);
  }
}

}  // namespace
}  // namespace fastllm::ops::cpu
