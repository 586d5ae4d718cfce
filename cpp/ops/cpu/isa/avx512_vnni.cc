// The quantised linear for AVX-512 with VNNI: a panel's 16 rows are the lanes of a vector, and vpdpbusd takes four
// values of k at once. See quant_kernels.h for the layout of rows and contract/quant_weight.h for that of weights.
#include <immintrin.h>

#include <cstdint>

#include "ops/cpu/quant_kernels.h"

namespace fastllm::ops::cpu {
namespace {

constexpr float kLeastMax = 1e-30f;  // as in the plain arm

// The planes of one panel.
struct Panel {
  const uint8_t* low;
  const uint8_t* high;
  const uint8_t* d;
  const uint8_t* m;
};

// The planes of one tile of rows.
struct RowTile {
  const int8_t* q;
  const float* scale;
  const float* sum;
  const int32_t* shift;
};

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

// For the first tile, which reads a panel from memory: the panels after it follow in memory, and the hardware's own
// prefetch ends with each page.
constexpr int64_t kPrefetchAhead = 6144;

template <QuantFormat F>
inline void Prefetch(const Panel& w, int64_t b) {
  constexpr int64_t kBytes = PanelLayoutOf(F, 256).panel_bytes / 8;  // of a block
  const auto* at = reinterpret_cast<const char*>(w.low) + kPrefetchAhead + b * kBytes;
#pragma GCC unroll 10
  for (int64_t line = 0; line < (kBytes + 63) / 64; ++line) _mm_prefetch(at + 64 * line, _MM_HINT_T0);
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
inline void SumTile(const Panel& w, const RowTile& x, int64_t blocks, bool first, __m512* sum) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) sum[r] = _mm512_setzero_ps();
  for (int64_t b = 0; b < blocks; ++b) {
    if (first) Prefetch<F>(w, b);
    SumBlock<F, R, kFine>(w, x, b, sum);
  }
}

// Row `at` of the plane that the format starts its sums from, rows being blocks or, in a fine set, halves.
template <QuantFormat F>
inline const int32_t* ShiftOf(const QuantRows& rows, int64_t at, int64_t half) {
  constexpr QuantTraits t = TraitsOf(F);
  if constexpr (t.offset == 8) return rows.shift8 + at;
  if constexpr (t.offset == 16) return rows.shift16 + at;
  if constexpr (t.offset == 128) return rows.shift128 + at;
  if constexpr (t.offset == 32) return rows.shift32 + half;
  return nullptr;
}

template <QuantFormat F, int R>
void Tile(const QuantPanelJob& job, const Panel& w, int32_t panel, int32_t tile) {
  const QuantRows& rows = *job.rows;
  const int64_t blocks = rows.k / kQuantBlock;
  constexpr QuantTraits t = TraitsOf(F);
  const int64_t half = 2 * tile * blocks;
  const int64_t at = rows.fine ? half : tile * blocks;
  const RowTile x = {rows.q + int64_t{tile} * rows.k, rows.scale + at, t.has_min ? rows.sum + tile * blocks : nullptr,
                     ShiftOf<F>(rows, at, half)};
  __m512 sum[R];
  const bool first = tile == job.row_begin;
  if (rows.fine) {
    SumTile<F, R, true>(w, x, blocks, first, sum);
  } else {
    SumTile<F, R, false>(w, x, blocks, first, sum);
  }
  const int32_t n = panel * kQuantPanel;
  const int32_t valid = job.weight->n - n;
  const __mmask16 lanes = valid >= kQuantPanel ? 0xFFFF : static_cast<__mmask16>((1u << valid) - 1);
  float* out = job.out + tile * job.out_stride + n;
  if (job.bias != nullptr) {
    const __m512 bias = _mm512_maskz_loadu_ps(lanes, job.bias + n);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sum[r] = _mm512_add_ps(sum[r], bias);
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) _mm512_mask_storeu_ps(out + r * job.out_stride, lanes, sum[r]);
}

template <QuantFormat F>
void Panels(const QuantPanelJob& job) {
  for (int32_t panel = job.panel_begin; panel < job.panel_end; ++panel) {
    const uint8_t* data = job.weight->data + panel * job.layout.panel_bytes;
    const Panel w = {data, data + job.layout.high, data + job.layout.d, data + job.layout.m};
    for (int32_t tile = job.row_begin; tile < job.row_end;) {
      const int32_t count = TileRows(job.rows->num_rows - tile);
      switch (count) {
        case 8: Tile<F, 8>(job, w, panel, tile); break;
        case 4: Tile<F, 4>(job, w, panel, tile); break;
        case 2: Tile<F, 2>(job, w, panel, tile); break;
        default: Tile<F, 1>(job, w, panel, tile); break;
      }
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
inline void QuantizeBlock(const float* x, const QuantRows& rows, int64_t tile, int32_t count, int32_t r, int64_t b) {
  const __m512 x0 = _mm512_loadu_ps(x);
  const __m512 x1 = _mm512_loadu_ps(x + 16);
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
    QuantizeBlock(x + int64_t{row} * rows.k + b * kQuantBlock, rows, tile, count, row - tile, b);
  }
}

}  // namespace

const QuantKernels kAvx512VnniQuantKernels = {Quantize, Linear};

}  // namespace fastllm::ops::cpu
