// Eight rows of x to 8 bits at once with AVX-512 VNNI: the same numbers as vnni_rows.h, the rows being the lanes of the
// vectors of scales and sums.
#pragma once

#include "ops/cpu/isa/vnni_rows.h"

namespace fastllm::ops::cpu {
namespace {

// The largest of each of eight vectors of magnitudes.
inline __m256i LargestOfEach(const __m512i (&m)[8]) {
  __m512i pairs[4], quads[2];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    pairs[i] =
        _mm512_max_epi32(_mm512_unpacklo_epi32(m[2 * i], m[2 * i + 1]), _mm512_unpackhi_epi32(m[2 * i], m[2 * i + 1]));
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {  // rows 4 i .. 4 i + 3 in each quarter
    quads[i] = _mm512_max_epi32(_mm512_unpacklo_epi64(pairs[2 * i], pairs[2 * i + 1]),
                                _mm512_unpackhi_epi64(pairs[2 * i], pairs[2 * i + 1]));
  }
  const __m512i halves =
      _mm512_max_epi32(_mm512_shuffle_i32x4(quads[0], quads[1], 0x44), _mm512_shuffle_i32x4(quads[0], quads[1], 0xEE));
  return _mm512_castsi512_si256(
      _mm512_max_epi32(_mm512_shuffle_i32x4(halves, halves, 0x88), _mm512_shuffle_i32x4(halves, halves, 0xDD)));
}

// What eight rows are multiplied by, and what their integers stand for.
struct Scales8 {
  alignas(32) float inverse[8];
  __m256 scale;
  explicit Scales8(__m256i largest) {
    const __m256 amax = _mm256_castsi256_ps(largest), top = _mm256_set1_ps(127.0f);
    const __mmask8 counts = _mm256_cmp_ps_mask(amax, _mm256_set1_ps(kLeastMax), _CMP_GE_OQ);
    _mm256_store_ps(inverse, _mm256_maskz_div_ps(counts, top, amax));
    scale = _mm256_div_ps(amax, top);
  }
};

// Sums of eight rows' 16 values: two vectors of two groups each.
inline __m256i SumOfHalf(__m512i first, __m512i second) {
  const __m512i ones = _mm512_set1_epi8(1);
  const __m512i sums = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(_mm512_setzero_si512(), ones, first), ones, second);
  return _mm256_add_epi32(_mm512_castsi512_si256(sums), _mm512_extracti64x4_epi64(sums, 1));
}

inline void StoreTimes(int32_t* to, int32_t factor, __m256i sum) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_mullo_epi32(_mm256_set1_epi32(factor), sum));
}
inline void StoreShifts8(const QuantRows& rows, int64_t at, __m256i sum) {
  if (rows.shift8 != nullptr) StoreTimes(rows.shift8 + at, -8, sum);
  if (rows.shift16 != nullptr) StoreTimes(rows.shift16 + at, -16, sum);
  if (rows.shift128 != nullptr) StoreTimes(rows.shift128 + at, -128, sum);
}

// The scales and sums of block b of the eight rows from `tile` on.
template <bool kFine>
inline void StoreScales8(const QuantRows& rows, int64_t tile, int64_t b, const Scales8 (&s)[2],
                         const __m256i (&sum)[2]) {
  const int64_t blocks = rows.k / kQuantBlock;
  const int64_t at = tile * blocks + b * 8, half = 2 * at;
  if (rows.shift32 != nullptr) {
    StoreTimes(rows.shift32 + half, -32, sum[0]);
    StoreTimes(rows.shift32 + half + 8, -32, sum[1]);
  }
  __m256 sums;
  if constexpr (kFine) {
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      _mm256_storeu_ps(rows.scale + half + 8 * h, s[h].scale);
      StoreShifts8(rows, half + 8 * h, sum[h]);
    }
    sums = _mm256_add_ps(_mm256_mul_ps(s[0].scale, _mm256_cvtepi32_ps(sum[0])),
                         _mm256_mul_ps(s[1].scale, _mm256_cvtepi32_ps(sum[1])));
  } else {
    const __m256i whole = _mm256_add_epi32(sum[0], sum[1]);
    _mm256_storeu_ps(rows.scale + at, s[0].scale);
    StoreShifts8(rows, at, whole);
    sums = _mm256_mul_ps(s[0].scale, _mm256_cvtepi32_ps(whole));
  }
  if (rows.sum != nullptr) _mm256_storeu_ps(rows.sum + at, sums);
}

// Block b of the eight rows from `tile` on; x(r, h) loads half h of row r. The same integers as QuantizeBlock.
template <bool kFine, typename Load>
inline void QuantizeBlock8(const Load& x, const QuantRows& rows, int64_t tile, int64_t b) {
  __m512i m[2][8];
#pragma GCC unroll 8
  for (int r = 0; r < 8; ++r) {
    m[0][r] = Magnitude(x(r, 0));
    m[1][r] = Magnitude(x(r, 1));
    if constexpr (!kFine) m[0][r] = _mm512_max_epi32(m[0][r], m[1][r]);
  }
  const Scales8 first(LargestOfEach(m[0]));
  const Scales8 s[2] = {first, kFine ? Scales8(LargestOfEach(m[1])) : first};
  __m512i two[4];  // quarter l: groups l and 4 + l of row 2 i, then those of row 2 i + 1
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    __m512i words[2];
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      const int r = 2 * i + j;
      const __m512i low = _mm512_cvtps_epi32(_mm512_mul_ps(x(r, 0), _mm512_set1_ps(s[0].inverse[r])));
      const __m512i high = _mm512_cvtps_epi32(_mm512_mul_ps(x(r, 1), _mm512_set1_ps(s[kFine ? 1 : 0].inverse[r])));
      words[j] = _mm512_packs_epi32(low, high);
    }
    two[i] = _mm512_packs_epi16(words[0], words[1]);
  }
  auto* to = reinterpret_cast<__m512i*>(rows.q + tile * rows.k + b * kQuantBlock * 8);
  __m256i sum[2];
#pragma GCC unroll 2
  for (int h = 0; h < 2; ++h) {
    // Quarter l: group 4 h + l of rows 0 .. 3, and of rows 4 .. 7.
    const auto pick = [&](int i) {
      const __m512 a = _mm512_castsi512_ps(two[i]), c = _mm512_castsi512_ps(two[i + 1]);
      return _mm512_castps_si512(h == 0 ? _mm512_shuffle_ps(a, c, 0x88) : _mm512_shuffle_ps(a, c, 0xDD));
    };
    const __m512i upper = pick(0), lower = pick(2);
    const __m512i first_two = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    const __m512i last_two = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    const __m512i g0 = _mm512_permutex2var_epi64(upper, first_two, lower);
    const __m512i g2 = _mm512_permutex2var_epi64(upper, last_two, lower);
    _mm512_storeu_si512(to + 2 * h, g0);
    _mm512_storeu_si512(to + 2 * h + 1, g2);
    sum[h] = SumOfHalf(g0, g2);
  }
  StoreScales8<kFine>(rows, tile, b, s, sum);
}

// A whole tile.
void QuantizeTile(const float* x, const QuantRows& rows, int32_t tile) {
  const float* from = x + int64_t{tile} * rows.k;
  for (int64_t b = 0; b < rows.k / kQuantBlock; ++b) {
    const auto load = [&](int r, int h) {
      return _mm512_loadu_ps(from + r * int64_t{rows.k} + b * kQuantBlock + 16 * h);
    };
    if (rows.fine) {
      QuantizeBlock8<true>(load, rows, tile, b);
    } else {
      QuantizeBlock8<false>(load, rows, tile, b);
    }
  }
}

}  // namespace
}  // namespace fastllm::ops::cpu
