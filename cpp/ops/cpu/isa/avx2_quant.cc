// The quantised linear for AVX2: a panel's 16 rows are two vectors of 8 lanes. The same integers and the same order of
// float operations as the other arms, so the same bits.
#include <immintrin.h>

#include <cstdint>

#include "ops/cpu/quant_kernels.h"

namespace fastllm::ops::cpu {
namespace {

constexpr float kLeastMax = 1e-30f;  // as in the plain arm

struct Panel {
  const uint8_t* low;
  const uint8_t* high;
  const uint8_t* d;
  const uint8_t* m;
};

// Some rows of a tile of `count`: the pointers are at the first of them.
struct RowTile {
  const int8_t* q;
  const float* scale;
  const float* sum;
  const int32_t* shift;
  int64_t count;
};

template <bool kFloat>
inline __m256 LoadScales(const uint8_t* plane, int64_t index, int half) {
  if constexpr (kFloat) return _mm256_loadu_ps(reinterpret_cast<const float*>(plane + 64 * index) + 8 * half);
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(plane + 32 * index) + half));
}

inline __m256i LoadBytes(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }

// The four values of k that row r has in group g, in every lane.
inline __m256i Values(const RowTile& x, int64_t g, int r) {
  int32_t four;
  __builtin_memcpy(&four, x.q + (g * x.count + r) * 4, sizeof(four));
  return _mm256_set1_epi32(four);
}

// Four products in each 32-bit lane, exact for all unsigned bytes: the 16-bit sums of vpmaddubsw would saturate.
inline __m256i DotBytes(__m256i w, __m256i x) {
  const __m256i even = _mm256_and_si256(w, _mm256_set1_epi16(255));
  const __m256i odd = _mm256_srli_epi16(w, 8);
  const __m256i x_even = _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8);
  const __m256i x_odd = _mm256_srai_epi16(x, 8);
  return _mm256_add_epi32(_mm256_madd_epi16(even, x_even), _mm256_madd_epi16(odd, x_odd));
}

// 32 bytes that are 16 where the bit is set.
inline __m256i FifthBits(const uint8_t* bits) {
  int32_t word;
  __builtin_memcpy(&word, bits, sizeof(word));
  const __m256i spread = _mm256_shuffle_epi8(
      _mm256_set1_epi32(word),
      _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3));
  const __m256i bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201ull));
  const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, bit), bit);
  return _mm256_and_si256(set, _mm256_set1_epi8(16));
}

// Groups [8 b + first, 8 b + first + count) of a block of 8-bit weights; acc[2 r + half].
template <int R>
inline void AddBytes(const Panel& w, const RowTile& x, int64_t b, int first, int count, __m256i* acc) {
  for (int g = first; g < first + count; ++g) {
    const uint8_t* bytes = w.low + (b * 8 + g) * 64;
    for (int r = 0; r < R; ++r) {
      const __m256i v = Values(x, b * 8 + g, r);
      for (int half = 0; half < 2; ++half) {
        acc[2 * r + half] = _mm256_add_epi32(acc[2 * r + half], DotBytes(LoadBytes(bytes + 32 * half), v));
      }
    }
  }
}

// Half h of a block of 4 or 5 bits: the low or the high halves of the bytes. A 16-bit sum holds 8 products of at most
// 31 x 127.
template <int R, bool kFive>
inline void AddHalf(const Panel& w, const RowTile& x, int64_t b, int h, __m256i* acc) {
  const __m256i mask = _mm256_set1_epi8(15);
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i sums[2 * R];
  for (int i = 0; i < 2 * R; ++i) sums[i] = _mm256_setzero_si256();
  for (int j = 0; j < 4; ++j) {
    for (int half = 0; half < 2; ++half) {
      const __m256i both = LoadBytes(w.low + (b * 4 + j) * 64 + 32 * half);
      __m256i v = _mm256_and_si256(h == 0 ? both : _mm256_srli_epi16(both, 4), mask);
      if constexpr (kFive) v = _mm256_or_si256(v, FifthBits(w.high + (b * 8 + 4 * h + j) * 8 + 4 * half));
      for (int r = 0; r < R; ++r) {
        const __m256i p = _mm256_maddubs_epi16(v, Values(x, b * 8 + 4 * h + j, r));
        sums[2 * r + half] = _mm256_add_epi16(sums[2 * r + half], p);
      }
    }
  }
  for (int i = 0; i < 2 * R; ++i) acc[i] = _mm256_add_epi32(acc[i], _mm256_madd_epi16(sums[i], ones));
}

template <int R, bool kFloat>
inline void AddScaled(const __m256i* acc, const uint8_t* d, int64_t index, const float* scale, __m256* sum) {
  for (int half = 0; half < 2; ++half) {
    const __m256 dv = LoadScales<kFloat>(d, index, half);
    for (int r = 0; r < R; ++r) {
      const __m256 s = _mm256_mul_ps(dv, _mm256_set1_ps(scale[r]));
      sum[2 * r + half] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(acc[2 * r + half]), s, sum[2 * r + half]);
    }
  }
}

template <int R>
inline void Start(const int32_t* shift, __m256i* acc) {
  for (int i = 0; i < 2 * R; ++i) acc[i] = _mm256_set1_epi32(shift[i / 2]);
}

// Integer sums of half h of a block.
template <QuantFormat F, int R>
inline void AddValues(const Panel& w, const RowTile& x, int64_t b, int h, __m256i* acc) {
  constexpr QuantTraits t = TraitsOf(F);
  if constexpr (t.bits == 8) {
    AddBytes<R>(w, x, b, 4 * h, 4, acc);
  } else {
    AddHalf<R, t.bits == 5>(w, x, b, h, acc);
  }
}

template <QuantFormat F, int R>
inline void StartSums(const RowTile& x, int64_t row, __m256i* acc) {
  constexpr QuantTraits t = TraitsOf(F);
  if constexpr (t.has_min) {
    for (int i = 0; i < 2 * R; ++i) acc[i] = _mm256_setzero_si256();
  } else {
    Start<R>(x.shift + row * x.count, acc);
  }
}

// A block of weights with one d, of rows with a scale for each half.
template <QuantFormat F, int R>
inline void AddFine(const Panel& w, const RowTile& x, int64_t b, __m256* sum) {
  constexpr QuantTraits t = TraitsOf(F);
  __m256i acc[2 * R];
  __m256 part[2 * R];
  StartSums<F, R>(x, 2 * b, acc);
  AddValues<F, R>(w, x, b, 0, acc);
  for (int i = 0; i < 2 * R; ++i) {
    part[i] = _mm256_mul_ps(_mm256_cvtepi32_ps(acc[i]), _mm256_set1_ps(x.scale[2 * b * x.count + i / 2]));
  }
  StartSums<F, R>(x, 2 * b + 1, acc);
  AddValues<F, R>(w, x, b, 1, acc);
  for (int i = 0; i < 2 * R; ++i) {
    const __m256 scale = _mm256_set1_ps(x.scale[(2 * b + 1) * x.count + i / 2]);
    const __m256 both = _mm256_fmadd_ps(_mm256_cvtepi32_ps(acc[i]), scale, part[i]);
    sum[i] = _mm256_fmadd_ps(both, LoadScales<t.float_scale>(w.d, b, i % 2), sum[i]);
  }
}

// kFine: x has a scale for each half of a block.
template <QuantFormat F, int R, bool kFine>
inline void SumRows(const Panel& w, const RowTile& x, int64_t blocks, __m256* sum) {
  constexpr QuantTraits t = TraitsOf(F);
  for (int i = 0; i < 2 * R; ++i) sum[i] = _mm256_setzero_ps();
  for (int64_t b = 0; b < blocks; ++b) {
    __m256i acc[2 * R];
    if constexpr (kFine && t.group == 32) {
      AddFine<F, R>(w, x, b, sum);
    } else if constexpr (t.group == 16) {
      for (int h = 0; h < 2; ++h) {
        StartSums<F, R>(x, 2 * b + h, acc);
        AddValues<F, R>(w, x, b, h, acc);
        const float* scale = x.scale + (kFine ? 2 * b + h : b) * x.count;
        AddScaled<R, t.float_scale>(acc, w.d, 2 * b + h, scale, sum);
      }
    } else {
      StartSums<F, R>(x, b, acc);
      AddValues<F, R>(w, x, b, 0, acc);
      AddValues<F, R>(w, x, b, 1, acc);
      AddScaled<R, t.float_scale>(acc, w.d, b, x.scale + b * x.count, sum);
    }
    if constexpr (t.has_min) {
      for (int half = 0; half < 2; ++half) {
        const __m256 m = LoadScales<t.float_scale>(w.m, b, half);
        for (int r = 0; r < R; ++r) {
          sum[2 * r + half] = _mm256_fmadd_ps(m, _mm256_set1_ps(x.sum[b * x.count + r]), sum[2 * r + half]);
        }
      }
    }
  }
}

// Rows [row, row + R) of the tile of `count` rows at `tile`.
template <QuantFormat F, int R>
void Rows(const QuantPanelJob& job, const Panel& w, int32_t panel, int64_t tile, int32_t count, int32_t row) {
  constexpr QuantTraits t = TraitsOf(F);
  const QuantRows& rows = *job.rows;
  const int64_t blocks = rows.k / kQuantBlock;
  const int64_t block = tile * blocks + row;
  const int64_t half = 2 * tile * blocks + row;
  const int64_t at = rows.fine ? half : block;
  RowTile x = {rows.q + tile * rows.k + row * 4, rows.scale + at, nullptr, nullptr, count};
  if constexpr (t.has_min) x.sum = rows.sum + block;
  if constexpr (t.offset == 8) x.shift = rows.shift8 + at;
  if constexpr (t.offset == 16) x.shift = rows.shift16 + at;
  if constexpr (t.offset == 128) x.shift = rows.shift128 + at;
  if constexpr (t.offset == 32) x.shift = rows.shift32 + half;
  __m256 sum[2 * R];
  if (rows.fine) {
    SumRows<F, R, true>(w, x, blocks, sum);
  } else {
    SumRows<F, R, false>(w, x, blocks, sum);
  }
  const int32_t n = panel * kQuantPanel;
  const int32_t valid = job.weight->n - n;
  for (int r = 0; r < R; ++r) {
    alignas(32) float lanes[kQuantPanel];
    _mm256_store_ps(lanes, sum[2 * r]);
    _mm256_store_ps(lanes + 8, sum[2 * r + 1]);
    float* out = job.out + (tile + row + r) * job.out_stride + n;
    for (int i = 0; i < kQuantPanel && i < valid; ++i)
      out[i] = job.bias == nullptr ? lanes[i] : lanes[i] + job.bias[n + i];
  }
}

template <QuantFormat F>
void Panels(const QuantPanelJob& job) {
  for (int32_t panel = job.panel_begin; panel < job.panel_end; ++panel) {
    const uint8_t* data = job.weight->data + panel * job.layout.panel_bytes;
    const Panel w = {data, data + job.layout.high, data + job.layout.d, data + job.layout.m};
    for (int32_t tile = job.row_begin; tile < job.row_end;) {
      const int32_t count = TileRows(job.rows->num_rows - tile);
      int32_t row = 0;
      for (; row + 2 <= count; row += 2) Rows<F, 2>(job, w, panel, tile, count, row);
      if (row < count) Rows<F, 1>(job, w, panel, tile, count, row);
      tile += count;
    }
  }
}

void Linear(const QuantPanelJob& job) {
  switch (job.weight->format) {
    case QuantFormat::kQ4_0: return Panels<QuantFormat::kQ4_0>(job);
    case QuantFormat::kQ4_1: return Panels<QuantFormat::kQ4_1>(job);
    case QuantFormat::kQ5_0: return Panels<QuantFormat::kQ5_0>(job);
    case QuantFormat::kQ5_1: return Panels<QuantFormat::kQ5_1>(job);
    case QuantFormat::kQ8_0: return Panels<QuantFormat::kQ8_0>(job);
    case QuantFormat::kQ4_K: return Panels<QuantFormat::kQ4_K>(job);
    case QuantFormat::kQ5_K: return Panels<QuantFormat::kQ5_K>(job);
    case QuantFormat::kQ6_K: return Panels<QuantFormat::kQ6_K>(job);
  }
}

inline int32_t MaxLane(__m256i v) {
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4E));
  return _mm_cvtsi128_si32(_mm_max_epi32(m, _mm_shuffle_epi32(m, 0xB1)));
}

inline float Largest(__m256 a, __m256 b) {
  const __m256i magnitude = _mm256_set1_epi32(0x7FFFFFFF);
  const int32_t bits = MaxLane(_mm256_max_epi32(_mm256_and_si256(_mm256_castps_si256(a), magnitude),
                                                _mm256_and_si256(_mm256_castps_si256(b), magnitude)));
  float amax;
  __builtin_memcpy(&amax, &bits, sizeof(amax));
  return amax;
}

inline bool IsLarger(float a, float b) { return !(a <= b); }  // also where a is a NaN

// q of 32 values, in order, and the scales of the halves (equal unless fine).
inline void QuantizeValues(const float* x, bool fine, int8_t* q, float* scale) {
  __m256 v[4];
  for (int i = 0; i < 4; ++i) v[i] = _mm256_loadu_ps(x + 8 * i);
  float amax[2] = {Largest(v[0], v[1]), Largest(v[2], v[3])};
  if (!fine) amax[0] = amax[1] = amax[0] != amax[0] || !IsLarger(amax[1], amax[0]) ? amax[0] : amax[1];
  __m256i whole[4];
  for (int i = 0; i < 4; ++i) {
    const float top = amax[i / 2];
    whole[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], _mm256_set1_ps(top >= kLeastMax ? 127.0f / top : 0.0f)));
  }
  // The packs work on 128-bit halves; the permutation puts their quarters in order.
  const __m256i low = _mm256_packs_epi32(whole[0], whole[1]);
  const __m256i high = _mm256_packs_epi32(whole[2], whole[3]);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order));
  for (int h = 0; h < 2; ++h) scale[h] = amax[h] / 127.0f;
}

inline void StoreShifts(const QuantRows& rows, int64_t at, int32_t sum) {
  if (rows.shift8 != nullptr) rows.shift8[at] = -8 * sum;
  if (rows.shift16 != nullptr) rows.shift16[at] = -16 * sum;
  if (rows.shift128 != nullptr) rows.shift128[at] = -128 * sum;
}

void Quantize(const float* x, const QuantRows& rows, int32_t tile, int32_t count, int32_t row) {
  const int64_t blocks = rows.k / kQuantBlock;
  const int32_t r = row - tile;
  for (int64_t b = 0; b < blocks; ++b) {
    alignas(32) int8_t q[kQuantBlock];
    float scale[2];
    QuantizeValues(x + int64_t{row} * rows.k + b * kQuantBlock, rows.fine, q, scale);
    int32_t sum[2] = {0, 0};
    for (int i = 0; i < kQuantBlock; ++i) sum[i / 16] += q[i];
    int8_t* to = rows.q + int64_t{tile} * rows.k + b * kQuantBlock * count + r * 4;
    for (int g = 0; g < 8; ++g) __builtin_memcpy(to + int64_t{4} * g * count, q + 4 * g, 4);
    const int64_t at = tile * blocks + b * count + r;
    const int64_t half = 2 * tile * blocks + 2 * b * count + r;
    for (int h = 0; h < 2; ++h) {
      if (rows.shift32 != nullptr) rows.shift32[half + h * count] = -32 * sum[h];
      if (!rows.fine) continue;
      rows.scale[half + h * count] = scale[h];
      StoreShifts(rows, half + h * count, sum[h]);
    }
    if (rows.fine) {
      const float first = scale[0] * static_cast<float>(sum[0]);
      if (rows.sum != nullptr) rows.sum[at] = first + scale[1] * static_cast<float>(sum[1]);
      continue;
    }
    rows.scale[at] = scale[0];
    StoreShifts(rows, at, sum[0] + sum[1]);
    if (rows.sum != nullptr) rows.sum[at] = scale[0] * static_cast<float>(sum[0] + sum[1]);
  }
}

}  // namespace

const QuantKernels kAvx2QuantKernels = {Quantize, Linear};

}  // namespace fastllm::ops::cpu
