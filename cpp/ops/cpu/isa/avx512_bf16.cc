// Attention over a bfloat16 cache with AVX-512 BF16: a product of two pairs in each lane. The loop over chunks, the
// softmax and the joining of splits are those of vector_attention.h.
//
// A chunk is rearranged once for all rows of an item: K so that a vector holds one pair of the head for 16 positions
// (scores need no sum across lanes), V so that a vector holds one pair of positions for 16 elements of the head.
// Queries and weights are rounded to bfloat16. A score is a sum over pairs of the head in order; the output a sum over
// pairs of positions that start at even ones, in order, so a row's bits depend on its position alone. A position that
// a row does not see has weight 0; positions past the end of the sequence are not read, zeros stand in their place.
// Weights are 2^(score log2 e - maximum log2 e), within 4e-6, a thousandth of what their rounding takes, and the
// rounding of the maximum's product, 5e-8 of it: as much as their own rounding takes from maxima of 1e4 on.
#define FASTLLM_BFLOAT_CACHE 1
#include "ops/cpu/isa/simd_avx512.h"
#include "ops/cpu/isa/vector_attention_blocks.h"
#include "ops/cpu/isa/vector_attention_softmax.h"
#include "ops/cpu/isa/vector_attention_tiles.h"

namespace fastllm::ops::cpu {
namespace {

inline __m512bh AsBf16(__m512i v) { return (__m512bh)v; }

// To nearest even; values below the smallest normal one become 0.
inline void StoreRounded(uint16_t* to, Vec x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), (__m256i)_mm512_cvtneps_pbh(x));
}

constexpr float kLog2E = 1.44269504f;

// 2^x for x <= 0, relative error 4e-6: a polynomial of degree 4 on [-1/2, 1/2], fitted at Chebyshev nodes with value 1
// at 0. A NaN stays one.
inline Vec Exp2(Vec x) {
  x = Max(Set(-200.0f), x);
  const Vec n = Round(x);
  const Vec r = Sub(x, n);
  Vec p = Fma(Set(9.600395517e-3f), r, Set(5.591689383e-2f));
  p = Fma(p, r, Set(2.402371846e-1f));
  p = Fma(p, r, Set(6.931219948e-1f));
  p = Fma(p, r, Set(1.0f));
  return ScaleByPowerOf2(p, n);
}

struct BFloatCache {
  static constexpr bool kOwnSoftmax = true;
  // [dim / 2][kAttentionChunk] pairs of K; [kAttentionChunk / 2][dim] pairs of V; queries [rows, dim]; weights
  // [rows, kAttentionChunk], of the rows that are worked on.
  int32_t* k;
  int32_t* v;
  uint16_t* q;
  uint16_t* w;
  const uint16_t* values;
  int32_t positions = 0;  // that the rows at work see of the chunk, rounded up to whole vectors
  int32_t count = 0;      // of the chunk
  bool paired = false;    // pairs of V are in memory

  BFloatCache(const PagedAttentionParams& p, const Tile& t) : values(static_cast<const uint16_t*>(p.cache.v)) {
    k = reinterpret_cast<int32_t*>(t.wide);
    v = k + int64_t{kAttentionChunk} * t.stride / 2;
    q = reinterpret_cast<uint16_t*>(v + int64_t{kAttentionChunk} * t.stride / 2);
    w = q + static_cast<int64_t>(t.rows) * t.stride;
    for (int32_t r = 0; r < t.rows; ++r) {
      const float* from = t.q + static_cast<int64_t>(r) * t.stride;
      for (int32_t d = 0; d < t.stride; d += kLanes)
        StoreRounded(q + static_cast<int64_t>(r) * t.stride + d, Load(from + d));
    }
  }

  void Chunk(const PagedAttentionParams& p, const Tile& t, const int64_t* offset, int32_t n, Fetcher& fetcher) {
    const int32_t padded = (n + kLanes - 1) / kLanes * kLanes;
    count = n;
    paired = !PairsOnTheWay(t);
    const auto* from_k = static_cast<const uint16_t*>(p.cache.k);
    for (int32_t j = 0; j < padded; j += kLanes) {
      for (int32_t d = 0; d < t.stride; d += 2 * kLanes) {
        fetcher.Step(paired ? 8 : 16);
        TransposeKeys(from_k, offset, j, d, t);
      }
    }
    for (int32_t j = 0; paired && j < padded; j += 2) {
      fetcher.Step(t.stride / 32);
      PairValues(values, offset, j, n, t);
    }
  }

  void Scores(const Tile& t, const int64_t*, int32_t n) {
    positions = (n + kLanes - 1) / kLanes * kLanes;
    int32_t r = 0;
    for (; r + 6 <= t.rows; r += 6) ScoreRows<6>(t, r);
    for (; r + 3 <= t.rows; r += 3) ScoreRows<3>(t, r);
    for (; r < t.rows; ++r) ScoreRows<1>(t, r);
  }

  // As cpu::Softmax, but the weights leave rounded, and those of positions that a row does not see are 0.
  void Softmax(const Tile& t, int32_t chunk) const {
    for (int32_t r = 0; r < t.rows;) {
      const int32_t mates = t.group - r % t.group;
      const int32_t hidden = Hidden(t, r, chunk);
      const int32_t visible = Visible(t, r, chunk);
      if (mates >= 4) {
        WeighRows<4>(t, r, hidden, visible);
        r += 4;
      } else if (mates == 3) {
        WeighRows<3>(t, r, hidden, visible);
        r += 3;
      } else if (mates == 2) {
        WeighRows<2>(t, r, hidden, visible);
        r += 2;
      } else {
        WeighRows<1>(t, r, hidden, visible);
        r += 1;
      }
    }
  }

  void Values(const Tile& t, const int64_t* offset, int32_t) const {
    if (!paired) {
      switch (t.rows) {
        case 1: return PairedRows<1>(t, 0, offset);
        case 2: return PairedRows<2>(t, 0, offset);
        case 3: return PairedRows<3>(t, 0, offset);
        default: return PairedRows<4>(t, 0, offset);
      }
    }
    int32_t r = 0;
    for (; r + 6 <= t.rows; r += 6) ValueRows<6>(t, r);
    for (; r + 3 <= t.rows; r += 3) ValueRows<3>(t, r);
    for (; r < t.rows; ++r) ValueRows<1>(t, r);
  }

 private:
  // Few rows, as when a sequence decodes, do not pay for pairs of V in memory: they meet them as they are made.
  static bool PairsOnTheWay(const Tile& t) { return t.group <= 4 && t.rows == t.group && t.dim % (2 * kLanes) == 0; }

  template <int R>
  void PairedRows(const Tile& t, int32_t row, const int64_t* offset) const {
    int32_t d = 0;
    for (; d + 4 * kLanes <= t.dim; d += 4 * kLanes) PairedTile<R, 2>(t, row, offset, d);
    for (; d < t.dim; d += 2 * kLanes) PairedTile<R, 1>(t, row, offset, d);
  }

  // 32 N elements of the head from d on; the same products in the same order as ValueTile's.
  template <int R, int N>
  void PairedTile(const Tile& t, int32_t row, const int64_t* offset, int32_t d) const {
    // Unpacking takes the lower halves of 128 bits, then the upper ones.
    const __m512i in_order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    float* acc = t.acc + static_cast<int64_t>(row) * t.stride + d;
    const uint16_t* weights = w + static_cast<int64_t>(row) * kAttentionChunk;
    Vec a[R][2 * N];
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < 2 * N; ++c) a[r][c] = Load(acc + static_cast<int64_t>(r) * t.stride + c * kLanes);
    }
    for (int32_t j = 0; j < positions; j += 2) {
      const auto low_mask = static_cast<__mmask32>(j < count ? ~0u : 0u);
      const auto high_mask = static_cast<__mmask32>(j + 1 < count ? ~0u : 0u);
      __m512bh both[2 * N];
#pragma GCC unroll 2
      for (int i = 0; i < N; ++i) {
        const __m512i low = _mm512_maskz_loadu_epi16(low_mask, values + offset[j] + d + i * 2 * kLanes);
        const __m512i high = _mm512_maskz_loadu_epi16(high_mask, values + offset[j + 1] + d + i * 2 * kLanes);
        const __m512i x = _mm512_permutexvar_epi64(in_order, low);
        const __m512i y = _mm512_permutexvar_epi64(in_order, high);
        both[2 * i] = AsBf16(_mm512_unpacklo_epi16(x, y));
        both[2 * i + 1] = AsBf16(_mm512_unpackhi_epi16(x, y));
      }
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
        const __m512bh pair = Pair(weights + static_cast<int64_t>(r) * kAttentionChunk + j);
#pragma GCC unroll 4
        for (int c = 0; c < 2 * N; ++c) a[r][c] = _mm512_dpbf16_ps(a[r][c], pair, both[c]);
      }
    }
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < 2 * N; ++c) Store(acc + static_cast<int64_t>(r) * t.stride + c * kLanes, a[r][c]);
    }
  }

  // 16 positions from j, pairs of the head from element d.
  void TransposeKeys(const uint16_t* from, const int64_t* offset, int32_t j, int32_t d, const Tile& t) {
    const int32_t left = t.dim - d;
    const auto mask = static_cast<__mmask32>(left >= 32 ? ~0u : (1u << left) - 1);
    __m512i a[16];
    __m512i b[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) a[i] = _mm512_maskz_loadu_epi16(mask, from + offset[j + i] + d);
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
      b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
      b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
      a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
      a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
      a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
      a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
    // a[4 g + c] has in quarter l: pair 4 l + c of positions 4 g .. 4 g + 3.
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      const __m512i lo = _mm512_shuffle_i32x4(a[c], a[4 + c], 0x88);  // quarters 0, 2
      const __m512i hi = _mm512_shuffle_i32x4(a[c], a[4 + c], 0xDD);  // quarters 1, 3
      const __m512i lo2 = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0x88);
      const __m512i hi2 = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0xDD);
      int32_t* to = k + static_cast<int64_t>(d / 2 + c) * kAttentionChunk + j;
      StorePairs(to, _mm512_shuffle_i32x4(lo, lo2, 0x88));
      StorePairs(to + 4 * kAttentionChunk, _mm512_shuffle_i32x4(hi, hi2, 0x88));
      StorePairs(to + 8 * kAttentionChunk, _mm512_shuffle_i32x4(lo, lo2, 0xDD));
      StorePairs(to + 12 * kAttentionChunk, _mm512_shuffle_i32x4(hi, hi2, 0xDD));
    }
  }

  static void StorePairs(int32_t* to, __m512i v) { _mm512_storeu_si512(to, v); }

  // Positions j and j + 1, zeros from n on. The pairs of each 32 elements lie in the order that unpacking gives; Values
  // writes them back in that order.
  void PairValues(const uint16_t* from, const int64_t* offset, int32_t j, int32_t n, const Tile& t) {
    int32_t* to = v + static_cast<int64_t>(j / 2) * t.stride;
    for (int32_t d = 0; d < t.stride; d += kLanes) {
      const int32_t left = t.dim - d;
      const auto mask = static_cast<__mmask16>(left >= kLanes ? 0xFFFFu : (1u << (left > 0 ? left : 0)) - 1);
      const __m512i low = Widened(j < n ? mask : __mmask16{0}, from + offset[j] + d);
      const __m512i high = Widened(j + 1 < n ? mask : __mmask16{0}, from + offset[j + 1] + d);
      StorePairs(to + d, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
    }
  }

  static __m512i Widened(__mmask16 mask, const uint16_t* from) {
    return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from));
  }

  template <int R>
  void ScoreRows(const Tile& t, int32_t row) const {
    for (int32_t j = 0; j < positions; j += 4 * kLanes) {
      const int32_t left = (positions - j) / kLanes;
      if (left >= 4) {
        ScoreTile<R, 4>(t, row, j);
      } else {
        for (int32_t c = 0; c < left; ++c) ScoreTile<R, 1>(t, row, j + c * kLanes);
      }
    }
  }

  template <int R, int C>
  void ScoreTile(const Tile& t, int32_t row, int32_t j) const {
    Vec a[R][C];
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) a[r][c] = Set(0.0f);
    }
    const uint16_t* queries = q + static_cast<int64_t>(t.first_row + row) * t.stride;
    for (int32_t d = 0; d < t.dim; d += 2) {
      __m512bh keys[C];
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
        keys[c] = AsBf16(_mm512_loadu_si512(k + static_cast<int64_t>(d / 2) * kAttentionChunk + j + c * kLanes));
      }
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
        const __m512bh pair = Pair(queries + static_cast<int64_t>(r) * t.stride + d);
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) a[r][c] = _mm512_dpbf16_ps(a[r][c], pair, keys[c]);
      }
    }
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
        Store(t.scores + static_cast<int64_t>(row + r) * kAttentionChunk + j + c * kLanes, a[r][c]);
      }
    }
  }

  // R rows that see positions [first, n) of the chunk, at least one.
  template <int R>
  void WeighRows(const Tile& t, int32_t row, int32_t first, int32_t n) const {
    float* const s = t.scores + static_cast<int64_t>(row) * kAttentionChunk;
    uint16_t* const to = w + static_cast<int64_t>(row) * kAttentionChunk;
    const auto sees = [first, n](int32_t j) {
      const uint32_t before_end = n - j >= kLanes ? 0xFFFFu : (1u << (n - j)) - 1;
      return static_cast<__mmask16>(first <= j ? before_end : before_end & (0xFFFFu << (first - j)));
    };
    Vec max[R], total[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) max[r] = Set(t.max[row + r]), total[r] = Set(0.0f);
    const int32_t begin = first / kLanes * kLanes;
    for (int32_t j = begin; j < n; j += kLanes) {
      const __mmask16 seen = sees(j);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        float* const at = s + r * kAttentionChunk + j;
        if (t.softcap > 0.0f) Store(at, Mul(Set(t.softcap), Tanh(Div(Load(at), Set(t.softcap)))));
        max[r] = _mm512_mask_max_ps(max[r], seen, max[r], Load(at));
      }
    }
    float new_max[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      new_max[r] = ReduceMax(max[r]);
      max[r] = Set(new_max[r] * kLog2E);
    }
    for (int32_t j = 0; j < positions; j += kLanes) {
      const bool any = j >= begin && j < n;
      const __mmask16 seen = any ? sees(j) : __mmask16{0};
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        Vec x = Set(0.0f);
        if (any) x = _mm512_maskz_mov_ps(seen, Exp2(FmaSub(Load(s + r * kAttentionChunk + j), Set(kLog2E), max[r])));
        total[r] = Add(total[r], x);
        StoreRounded(to + r * kAttentionChunk + j, x);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) Rescale(t, row + r, new_max[r], ReduceAdd(total[r]));
  }

  static __m512bh Pair(const uint16_t* p) {
    int32_t both;
    __builtin_memcpy(&both, p, sizeof(both));
    return AsBf16(_mm512_set1_epi32(both));
  }

  template <int R>
  void ValueRows(const Tile& t, int32_t row) const {
    int32_t d = 0;
    for (; d + 4 * kLanes <= t.stride; d += 4 * kLanes) ValueTile<R, 4>(t, row, d);
    for (; d < t.stride; d += kLanes) ValueTile<R, 1>(t, row, d);
  }

  template <int R, int C>
  void ValueTile(const Tile& t, int32_t row, int32_t d) const {
    float* acc = t.acc + static_cast<int64_t>(row) * t.stride + d;
    const uint16_t* weights = w + static_cast<int64_t>(row) * kAttentionChunk;
    Vec a[R][C];
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) a[r][c] = Load(acc + static_cast<int64_t>(r) * t.stride + c * kLanes);
    }
    for (int32_t j = 0; j < positions; j += 2) {
      __m512bh pairs[C];
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
        pairs[c] = AsBf16(_mm512_loadu_si512(v + static_cast<int64_t>(j / 2) * t.stride + d + c * kLanes));
      }
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
        const __m512bh pair = Pair(weights + static_cast<int64_t>(r) * kAttentionChunk + j);
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) a[r][c] = _mm512_dpbf16_ps(a[r][c], pair, pairs[c]);
      }
    }
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) Store(acc + static_cast<int64_t>(r) * t.stride + c * kLanes, a[r][c]);
    }
  }
};

}  // namespace
}  // namespace fastllm::ops::cpu

#include "ops/cpu/isa/vector_attention.h"

namespace fastllm::ops::cpu {

const AttentionKernels kAvx512Bf16AttentionKernels = {Attention, AttentionSplit, AttentionJoin};

}  // namespace fastllm::ops::cpu
