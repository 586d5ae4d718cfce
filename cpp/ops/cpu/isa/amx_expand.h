// A block of a panel of a quantised weight as a tile of bfloat16: [16 pairs of k][16 rows][2]. Values are rounded to
// nearest, ties away from zero, as that is one addition.
//
// A byte q of a packed lane becomes a float without a conversion: bytes of the constant 128.0f are exchanged for it,
// which makes 128 + q where q is below 128 (32768 + q, one byte lower, where it is not). The multiplication by the
// scale takes the constant off again: exactly, but for formats with a minimum, whose m - 128 d is rounded.
#pragma once

#include "ops/contract/quant_weight.h"
#include "ops/cpu/isa/tiles.h"

namespace fastllm::ops::cpu {
namespace {

// Scales or minimums of 16 rows, entry `index` of a plane: float32 (kFloat) or float16.
template <bool kFloat>
inline __m512 LoadScales(const uint8_t* plane, int64_t index) {
  if constexpr (kFloat) return _mm512_loadu_ps(plane + 64 * index);
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(plane + 32 * index)));
}

// What the values of a lane are multiplied by, and what is added.
struct ScaleOf {
  __m512 d;
  __m512 c;
};

template <QuantFormat F>
inline ScaleOf LoadScale(const uint8_t* d_plane, const uint8_t* m_plane, int64_t index) {
  constexpr QuantTraits t = TraitsOf(F);
  constexpr float kConstant = t.offset == 128 ? 32768.0f : 128.0f;
  ScaleOf s;
  s.d = LoadScales<t.float_scale>(d_plane, index);
  if constexpr (t.has_min) {
    s.c = _mm512_fnmadd_ps(s.d, _mm512_set1_ps(kConstant), LoadScales<t.float_scale>(m_plane, index));
  } else {
    s.c = _mm512_mul_ps(s.d, _mm512_set1_ps(-(kConstant + static_cast<float>(t.offset))));
  }
  return s;
}

// Four values of k of 16 rows, a byte each, as two rows of a tile.
template <QuantFormat F>
[[gnu::always_inline]] inline void StorePairs(__m512i bytes, const ScaleOf& s, char* to) {
  constexpr bool kHigh = TraitsOf(F).offset == 128;
  constexpr int kAt = kHigh ? 1 : 2;  // the byte of the float that is exchanged
  const __m512i constant = _mm512_set1_epi32(kHigh ? 0x47000000 : 0x43000000);
  const __m512i in_place = _mm512_set1_epi32(0xFF << 8 * kAt);
  const __mmask64 exchanged = 0x1111111111111111ull << kAt;
  const __m512i half = _mm512_set1_epi32(0x8000);
  __m512i v[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    if (i == kAt) {
      v[i] = _mm512_ternarylogic_epi32(bytes, in_place, constant, 0xEA);  // (bytes & in_place) | constant
    } else {
      const __m512i pick = _mm512_broadcast_i32x4(_mm_setr_epi8(i, i, i, i, 4 + i, 4 + i, 4 + i, 4 + i, 8 + i, 8 + i,
                                                                8 + i, 8 + i, 12 + i, 12 + i, 12 + i, 12 + i));
      v[i] = _mm512_mask_shuffle_epi8(constant, exchanged, bytes, pick);
    }
    v[i] = _mm512_add_epi32(_mm512_castps_si512(_mm512_fmadd_ps(_mm512_castsi512_ps(v[i]), s.d, s.c)), half);
  }
  // The upper halves of the first of two values move to the lower halves of the second.
  const __m512i down = _mm512_broadcast_i32x4(_mm_setr_epi8(2, 3, 2, 3, 6, 7, 6, 7, 10, 11, 10, 11, 14, 15, 14, 15));
  const __mmask64 lower = 0x3333333333333333ull;
  _mm512_store_si512(to, _mm512_mask_shuffle_epi8(v[1], lower, v[0], down));
  _mm512_store_si512(to + 64, _mm512_mask_shuffle_epi8(v[3], lower, v[2], down));
}

// Block b of the panel at `panel`, a tile of 1 KiB at `to`.
template <QuantFormat F>
[[gnu::always_inline]] inline void ExpandBlock(const uint8_t* panel, const QuantPanelLayout& layout, int64_t b,
                                               char* to) {
  constexpr QuantTraits t = TraitsOf(F);
  const uint8_t* d = panel + layout.d;
  const uint8_t* m = panel + layout.m;
  const ScaleOf first = LoadScale<F>(d, m, t.group == 16 ? 2 * b : b);
  const ScaleOf second = t.group == 16 ? LoadScale<F>(d, m, 2 * b + 1) : first;
  if constexpr (t.bits == 8) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      StorePairs<F>(_mm512_loadu_si512(panel + (b * 8 + j) * 64), j < 4 ? first : second, to + 128 * j);
    }
  } else {
    const __m512i mask = _mm512_set1_epi8(15);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const __m512i both = _mm512_loadu_si512(panel + (b * 4 + j) * 64);
      __m512i low = _mm512_and_si512(both, mask);
      __m512i high = _mm512_and_si512(_mm512_srli_epi16(both, 4), mask);
      if constexpr (t.bits == 5) {
        const __m512i fifth = _mm512_set1_epi8(16);
        uint64_t bits[2];
        __builtin_memcpy(&bits[0], panel + layout.high + (b * 8 + j) * 8, 8);
        __builtin_memcpy(&bits[1], panel + layout.high + (b * 8 + 4 + j) * 8, 8);
        low = _mm512_mask_add_epi8(low, bits[0], low, fifth);
        high = _mm512_mask_add_epi8(high, bits[1], high, fifth);
      }
      StorePairs<F>(low, first, to + 128 * j);
      StorePairs<F>(high, second, to + 512 + 128 * j);
    }
  }
}

}  // namespace
}  // namespace fastllm::ops::cpu
