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
#pragma GCC unroll 12
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

// sum[r] += float(acc[r]) * (d * scale of the row)
template <int R>
inline void AddScaled(const __m512i* acc, __m512 d, const float* scale, __m512* sum) {
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
    sum[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[r]), _mm512_mul_ps(d, _mm512_set1_ps(scale[r])), sum[r]);
  }
}

template <int R>
inline void Start(const int32_t* shift, __m512i* acc) {
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) acc[r] = _mm512_set1_epi32(shift[r]);
}

// For the tile that reads a panel from memory: the panels after it follow in memory, and the hardware's own prefetch
// ends with each page.
constexpr int64_t kPrefetchAhead = 6144;

template <QuantFormat F>
inline void Prefetch(const Panel& w, int64_t b) {
  constexpr int64_t kBytes = PanelLayoutOf(F, 256).panel_bytes / 8;  // of a block
  const auto* at = reinterpret_cast<const char*>(w.low) + kPrefetchAhead + b * kBytes;
#pragma GCC unroll 10
  for (int64_t line = 0; line < (kBytes + 63) / 64; ++line) _mm_prefetch(at + 64 * line, _MM_HINT_T0);
}

template <QuantFormat F, int R>
inline void SumTile(const Panel& w, const RowTile& x, int64_t blocks, __m512* sum) {
  constexpr QuantTraits t = TraitsOf(F);
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) sum[r] = _mm512_setzero_ps();
  for (int64_t b = 0; b < blocks; ++b) {
    __m512i acc[R];
    if constexpr (R <= 4) Prefetch<F>(w, b);
    if constexpr (t.group == 16) {
      for (int h = 0; h < 2; ++h) {
        Start<R>(x.shift + (2 * b + h) * R, acc);
        DotBytes<R>(w, x, b, 4 * h, 4, acc);
        AddScaled<R>(acc, LoadScales<t.float_scale>(w.d, 2 * b + h), x.scale + b * R, sum);
      }
      continue;
    }
    if constexpr (t.has_min) {
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) acc[r] = _mm512_setzero_si512();
    } else {
      Start<R>(x.shift + b * R, acc);
    }
    if constexpr (t.bits == 8) {
      DotBytes<R>(w, x, b, 0, 8, acc);
    } else {
      DotNibbles<R, t.bits == 5>(w, x, b, acc);
    }
    AddScaled<R>(acc, LoadScales<t.float_scale>(w.d, b), x.scale + b * R, sum);
    if constexpr (t.has_min) {
      const __m512 m = LoadScales<t.float_scale>(w.m, b);
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) sum[r] = _mm512_fmadd_ps(m, _mm512_set1_ps(x.sum[b * R + r]), sum[r]);
    }
  }
}

template <QuantFormat F>
inline const int32_t* ShiftOf(const QuantRows& rows, int64_t tile, int64_t blocks) {
  constexpr QuantTraits t = TraitsOf(F);
  if constexpr (t.offset == 8) return rows.shift8 + tile * blocks;
  if constexpr (t.offset == 16) return rows.shift16 + tile * blocks;
  if constexpr (t.offset == 128) return rows.shift128 + tile * blocks;
  if constexpr (t.offset == 32) return rows.shift32 + 2 * tile * blocks;
  return nullptr;
}

template <QuantFormat F, int R>
void Tile(const QuantPanelJob& job, const Panel& w, int32_t panel, int32_t tile) {
  const QuantRows& rows = *job.rows;
  const int64_t blocks = rows.k / kQuantBlock;
  constexpr QuantTraits t = TraitsOf(F);
  const RowTile x = {rows.q + int64_t{tile} * rows.k, rows.scale + tile * blocks,
                     t.has_min ? rows.sum + tile * blocks : nullptr, ShiftOf<F>(rows, tile, blocks)};
  __m512 sum[R];
  SumTile<F, R>(w, x, blocks, sum);
  const int32_t n = panel * kQuantPanel;
  const int32_t valid = job.weight->n - n;
  const __mmask16 lanes = valid >= kQuantPanel ? 0xFFFF : static_cast<__mmask16>((1u << valid) - 1);
  float* out = job.out + tile * job.out_stride + n;
  if (job.bias != nullptr) {
    const __m512 bias = _mm512_maskz_loadu_ps(lanes, job.bias + n);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) sum[r] = _mm512_add_ps(sum[r], bias);
  }
#pragma GCC unroll 12
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
        case 12: Tile<F, 12>(job, w, panel, tile); break;
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

// Block b of row `tile + r` of a tile of `count`.
inline void QuantizeBlock(const float* x, const QuantRows& rows, int64_t tile, int32_t count, int32_t r, int64_t b) {
  const __m512 x0 = _mm512_loadu_ps(x);
  const __m512 x1 = _mm512_loadu_ps(x + 16);
  const __m512i magnitude = _mm512_set1_epi32(0x7FFFFFFF);
  const __m512i a0 = _mm512_and_si512(_mm512_castps_si512(x0), magnitude);
  const __m512i a1 = _mm512_and_si512(_mm512_castps_si512(x1), magnitude);
  const int32_t bits = _mm512_reduce_max_epi32(_mm512_max_epi32(a0, a1));
  float amax;
  __builtin_memcpy(&amax, &bits, sizeof(amax));
  const __m512 inverse = _mm512_set1_ps(amax >= kLeastMax ? 127.0f / amax : 0.0f);
  const float scale = amax / 127.0f;
  const __m512i i0 = _mm512_cvtps_epi32(_mm512_mul_ps(x0, inverse));
  const __m512i i1 = _mm512_cvtps_epi32(_mm512_mul_ps(x1, inverse));
  alignas(32) int8_t q[32];
  _mm_store_si128(reinterpret_cast<__m128i*>(q), _mm512_cvtsepi32_epi8(i0));
  _mm_store_si128(reinterpret_cast<__m128i*>(q + 16), _mm512_cvtsepi32_epi8(i1));
  int8_t* to = rows.q + tile * rows.k + b * kQuantBlock * count + r * 4;
  if (count == 1) {
    __builtin_memcpy(to, q, 32);
  } else {
#pragma GCC unroll 8
    for (int g = 0; g < 8; ++g) __builtin_memcpy(to + int64_t{4} * g * count, q + 4 * g, 4);
  }
  const int64_t blocks = rows.k / kQuantBlock;
  const int64_t at = tile * blocks + b * count + r;
  rows.scale[at] = scale;
  // The sums are of the bytes as stored: a NaN's is -128, what the conversion saturates to.
  const __m256i bytes = _mm256_load_si256(reinterpret_cast<const __m256i*>(q));
  const __m256i quads = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), bytes);
  __m128i low = _mm256_castsi256_si128(quads);
  __m128i high = _mm256_extracti128_si256(quads, 1);
  low = _mm_add_epi32(low, _mm_shuffle_epi32(low, 0x4E));
  high = _mm_add_epi32(high, _mm_shuffle_epi32(high, 0x4E));
  const int32_t half0 = _mm_cvtsi128_si32(_mm_add_epi32(low, _mm_shuffle_epi32(low, 0xB1)));
  const int32_t half1 = _mm_cvtsi128_si32(_mm_add_epi32(high, _mm_shuffle_epi32(high, 0xB1)));
  const int32_t sum = half0 + half1;
  if (rows.sum != nullptr) rows.sum[at] = scale * static_cast<float>(sum);
  if (rows.shift8 != nullptr) rows.shift8[at] = -8 * sum;
  if (rows.shift16 != nullptr) rows.shift16[at] = -16 * sum;
  if (rows.shift128 != nullptr) rows.shift128[at] = -128 * sum;
  if (rows.shift32 == nullptr) return;
  rows.shift32[2 * tile * blocks + 2 * b * count + r] = -32 * half0;
  rows.shift32[2 * tile * blocks + (2 * b + 1) * count + r] = -32 * half1;
}

void Quantize(const float* x, const QuantRows& rows, int32_t tile, int32_t count, int32_t row) {
  for (int64_t b = 0; b < rows.k / kQuantBlock; ++b) {
    QuantizeBlock(x + int64_t{row} * rows.k + b * kQuantBlock, rows, tile, count, row - tile, b);
  }
}

}  // namespace

const QuantKernels kAvx512VnniQuantKernels = {Quantize, Linear};

}  // namespace fastllm::ops::cpu
