// The quantised linear for AMX: tiles of 16 rows of x against the 16 rows of a panel, the values of k that share a
// scale of x in one instruction. Integer sums are exact, and scales go onto them by the contract's formulas, so the
// bits are those of the other arms, and jobs of few rows go to the AVX-512 kernel. amx_wide.cc is the faster product
// whose bits differ.
#include "ops/cpu/amx.h"
#include "ops/cpu/isa/amx_expand.h"
#include "ops/cpu/isa/tiles.h"
#include "ops/cpu/quant_kernels.h"

namespace fastllm::ops::cpu {
namespace {

constexpr int32_t kTileRows = 16;
constexpr int32_t kLeastRows = 32;    // from which on tiles were the faster ones, measured
constexpr int64_t kBlockBytes = 512;  // 16 rows of x, or of a panel, of a block of 32 values

// Tiles 0 to 3: sums. 4, 5: rows of x of a group of values. 6, 7: the panel's. Constants: the compiler takes ldtilecfg
// to read eight bytes only, and would not write the rest of a local one.
constexpr TileConfig kGroupsOf16 = {1, 0, {}, {64, 64, 64, 64, 16, 16, 64, 64}, {16, 16, 16, 16, 16, 16, 4, 4}};
constexpr TileConfig kGroupsOf32 = {1, 0, {}, {64, 64, 64, 64, 32, 32, 64, 64}, {16, 16, 16, 16, 16, 16, 8, 8}};

// The rows of a job as tiles of 16: q [tile][B][16][32], scale [tile][groups of x][16], sum [tile][B][16].
struct Tiles {
  int8_t* q;
  float* scale;
  float* sum;
  int64_t blocks;
  int64_t groups;  // of x in a row
};

// ---- rows of x, from the planes of quant_kernels.h ----

// Eight rows' groups of four values, [8 groups][8 rows] of 4 bytes, to eight rows of 32 bytes.
inline void Transpose8(const int8_t* from, int8_t* to) {
  __m256i a[8], b[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) a[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32 * i));
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    b[i] = _mm256_unpacklo_epi32(a[i], a[i + 1]);
    b[i + 1] = _mm256_unpackhi_epi32(a[i], a[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    a[i] = _mm256_unpacklo_epi64(b[i], b[i + 2]);
    a[i + 1] = _mm256_unpackhi_epi64(b[i], b[i + 2]);
    a[i + 2] = _mm256_unpacklo_epi64(b[i + 1], b[i + 3]);
    a[i + 3] = _mm256_unpackhi_epi64(b[i + 1], b[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 32 * i), _mm256_permute2x128_si256(a[i], a[i + 4], 0x20));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 32 * (i + 4)), _mm256_permute2x128_si256(a[i], a[i + 4], 0x31));
  }
}

// `count` rows of the planes from row `row`, which are rows `at` and on of tile `t`.
void LayTile(const QuantRows& rows, int32_t row, int32_t count, const Tiles& t, int64_t tile, int32_t at) {
  const int64_t blocks = t.blocks;
  for (int64_t b = 0; b < blocks; ++b) {
    const int8_t* from = rows.q + int64_t{row} * rows.k + b * 32 * count;
    int8_t* to = t.q + (tile * blocks + b) * kBlockBytes + 32 * at;
    if (count == 8) {
      Transpose8(from, to);
      continue;
    }
    for (int32_t g = 0; g < 8; ++g) {
      for (int32_t r = 0; r < count; ++r) __builtin_memcpy(to + 32 * r + 4 * g, from + (g * count + r) * 4, 4);
    }
  }
  const float* scale = rows.scale + int64_t{row} * t.groups;
  for (int64_t g = 0; g < t.groups; ++g) {
    float* to = t.scale + (tile * t.groups + g) * kTileRows + at;
    for (int32_t r = 0; r < count; ++r) to[r] = scale[g * count + r];
  }
  if (t.sum == nullptr) return;
  const float* sum = rows.sum + row * blocks;
  for (int64_t b = 0; b < blocks; ++b) {
    float* to = t.sum + (tile * blocks + b) * kTileRows + at;
    for (int32_t r = 0; r < count; ++r) to[r] = sum[b * count + r];
  }
}

Tiles LayRows(const QuantPanelJob& job, bool has_min, char* scratch) {
  const QuantRows& rows = *job.rows;
  const int64_t tiles = (job.row_end - job.row_begin + kTileRows - 1) / kTileRows;
  Tiles t;
  t.blocks = rows.k / kQuantBlock;
  t.groups = rows.fine ? 2 * t.blocks : t.blocks;
  t.q = reinterpret_cast<int8_t*>(scratch);
  t.scale = reinterpret_cast<float*>(scratch + tiles * t.blocks * kBlockBytes);
  t.sum = has_min ? t.scale + tiles * t.groups * kTileRows : nullptr;
  for (int32_t row = job.row_begin; row < job.row_end;) {
    const int32_t count = TileRows(rows.num_rows - row);
    LayTile(rows, row, count, t, (row - job.row_begin) / kTileRows, (row - job.row_begin) % kTileRows);
    row += count;
  }
  return t;
}

// ---- weights ----

// A panel's values less their offset, as tiles want them: [B][8][16][4].
template <QuantFormat F>
void Expand(const uint8_t* low, const uint8_t* high, int64_t blocks, int8_t* to) {
  constexpr QuantTraits t = TraitsOf(F);
  const __m512i offset = _mm512_set1_epi8(static_cast<int8_t>(t.offset));
  if constexpr (t.bits == 8) {
    for (int64_t i = 0; i < 8 * blocks; ++i) {
      _mm512_store_si512(to + 64 * i, _mm512_sub_epi8(_mm512_loadu_si512(low + 64 * i), offset));
    }
    return;
  }
  const __m512i mask = _mm512_set1_epi8(15);
  const __m512i fifth = _mm512_set1_epi8(16);
  for (int64_t b = 0; b < blocks; ++b) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const __m512i both = _mm512_loadu_si512(low + (b * 4 + j) * 64);
      __m512i first = _mm512_and_si512(both, mask);
      __m512i second = _mm512_and_si512(_mm512_srli_epi16(both, 4), mask);
      if constexpr (t.bits == 5) {
        uint64_t bits[2];
        __builtin_memcpy(&bits[0], high + (b * 8 + j) * 8, 8);
        __builtin_memcpy(&bits[1], high + (b * 8 + 4 + j) * 8, 8);
        first = _mm512_mask_add_epi8(first, bits[0], first, fifth);
        second = _mm512_mask_add_epi8(second, bits[1], second, fifth);
      }
      _mm512_store_si512(to + (b * 8 + j) * 64, _mm512_sub_epi8(first, offset));
      _mm512_store_si512(to + (b * 8 + 4 + j) * 64, _mm512_sub_epi8(second, offset));
    }
  }
}

// ---- products ----

// Where the sums of a block go, [2 halves][16 rows][16]. Blocks are multiplied kAhead of the one whose scales are
// applied, so that the two kinds of work overlap and no load waits for a store of a tile.
constexpr int64_t kAhead = 3;
struct alignas(64) BlockSums {
  int32_t of[2][kTileRows][16];
};

// The integer sums of block b, by halves or whole.
template <bool kHalves>
[[gnu::always_inline]] inline void MultiplyBlock(const int8_t* q, const int8_t* w, int64_t b, BlockSums* sums) {
  const int8_t* x = q + b * kBlockBytes;
  const int8_t* y = w + b * kBlockBytes;
  _tile_zero(0);
  _tile_loadd(4, x, 32);
  _tile_loadd(6, y, 64);
  _tile_dpbssd(0, 4, 6);
  if constexpr (kHalves) {
    _tile_zero(1);
    _tile_loadd(5, x + 16, 32);
    _tile_loadd(7, y + 256, 64);
    _tile_dpbssd(1, 5, 7);
  }
  _tile_stored(0, sums->of[0], 64);
  if constexpr (kHalves) _tile_stored(1, sums->of[1], 64);
}

inline __m512 AsFloats(const int32_t* sums) { return _mm512_cvtepi32_ps(_mm512_load_si512(sums)); }

// What the scales of a panel and of a tile of rows are read from.
struct Scales {
  const uint8_t* d;
  const uint8_t* m;
  const float* x;
  const float* sum;
};

// acc, which must stay in registers, += the sums of block b times their scales, row by row; see contract/quant_linear.h
// for the formulas.
template <QuantFormat F, bool kFine>
[[gnu::always_inline]] inline void AddBlock(const BlockSums& sums, const Scales& s, int64_t b, __m512* acc) {
  constexpr QuantTraits t = TraitsOf(F);
  const float* x0 = s.x + (kFine ? 2 * b : b) * kTileRows;
  const float* x1 = kFine ? x0 + kTileRows : x0;
  if constexpr (t.group == 16) {
    const __m512 d0 = LoadScales<t.float_scale>(s.d, 2 * b);
    const __m512 d1 = LoadScales<t.float_scale>(s.d, 2 * b + 1);
#pragma GCC unroll 16
    for (int r = 0; r < kTileRows; ++r) {
      acc[r] = _mm512_fmadd_ps(AsFloats(sums.of[0][r]), _mm512_mul_ps(d0, _mm512_set1_ps(x0[r])), acc[r]);
      acc[r] = _mm512_fmadd_ps(AsFloats(sums.of[1][r]), _mm512_mul_ps(d1, _mm512_set1_ps(x1[r])), acc[r]);
    }
  } else {
    const __m512 d = LoadScales<t.float_scale>(s.d, b);
#pragma GCC unroll 16
    for (int r = 0; r < kTileRows; ++r) {
      if constexpr (kFine) {
        const __m512 part = _mm512_mul_ps(AsFloats(sums.of[0][r]), _mm512_set1_ps(x0[r]));
        const __m512 both = _mm512_fmadd_ps(AsFloats(sums.of[1][r]), _mm512_set1_ps(x1[r]), part);
        acc[r] = _mm512_fmadd_ps(both, d, acc[r]);
      } else {
        acc[r] = _mm512_fmadd_ps(AsFloats(sums.of[0][r]), _mm512_mul_ps(d, _mm512_set1_ps(x0[r])), acc[r]);
      }
    }
  }
  if constexpr (t.has_min) {
    const __m512 m = LoadScales<t.float_scale>(s.m, b);
#pragma GCC unroll 16
    for (int r = 0; r < kTileRows; ++r) {
      acc[r] = _mm512_fmadd_ps(m, _mm512_set1_ps(s.sum[b * kTileRows + r]), acc[r]);
    }
  }
}

template <QuantFormat F, bool kFine>
[[gnu::always_inline]] inline void SumTile(const int8_t* q, const int8_t* w, const Scales& s, int64_t blocks,
                                           __m512* acc) {
  constexpr bool kHalves = kFine || TraitsOf(F).group == 16;
  BlockSums sums[kAhead + 1];
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) acc[r] = _mm512_setzero_ps();
  for (int64_t b = 0; b < kAhead && b < blocks; ++b) MultiplyBlock<kHalves>(q, w, b, &sums[b]);
  for (int64_t b = 0; b < blocks; ++b) {
    if (b + kAhead < blocks) MultiplyBlock<kHalves>(q, w, b + kAhead, &sums[(b + kAhead) % (kAhead + 1)]);
    AddBlock<F, kFine>(sums[b % (kAhead + 1)], s, b, acc);
  }
}

// Tile `tile` of the rows against a panel.
template <QuantFormat F, bool kFine>
void Tile(const QuantPanelJob& job, const Tiles& t, int64_t tile, const int8_t* w, int32_t panel) {
  const uint8_t* data = job.weight->data + panel * job.layout.panel_bytes;
  const Scales s = {data + job.layout.d, data + job.layout.m, t.scale + tile * t.groups * kTileRows,
                    t.sum == nullptr ? nullptr : t.sum + tile * t.blocks * kTileRows};
  __m512 acc[kTileRows];
  SumTile<F, kFine>(t.q + tile * t.blocks * kBlockBytes, w, s, t.blocks, acc);
  const int32_t n = panel * kQuantPanel;
  const int32_t valid = job.weight->n - n;
  const __mmask16 lanes = valid >= kQuantPanel ? 0xFFFF : static_cast<__mmask16>((1u << valid) - 1);
  const int32_t row = job.row_begin + static_cast<int32_t>(tile) * kTileRows;
  const __m512 bias = job.bias == nullptr ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(lanes, job.bias + n);
  float* out = job.out + int64_t{row} * job.out_stride + n;
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) {
    if (row + r < job.row_end) {
      const __m512 v = job.bias == nullptr ? acc[r] : _mm512_add_ps(acc[r], bias);
      _mm512_mask_storeu_ps(out + r * job.out_stride, lanes, v);
    }
  }
}

template <QuantFormat F, bool kFine>
void Panels(const QuantPanelJob& job, const Tiles& t, int64_t tiles, int8_t* expanded) {
  for (int32_t panel = job.panel_begin; panel < job.panel_end; ++panel) {
    const uint8_t* data = job.weight->data + panel * job.layout.panel_bytes;
    Expand<F>(data, data + job.layout.high, t.blocks, expanded);
    for (int64_t tile = 0; tile < tiles; ++tile) Tile<F, kFine>(job, t, tile, expanded, panel);
  }
}

template <QuantFormat F>
void PanelsOf(const QuantPanelJob& job) {
  constexpr QuantTraits traits = TraitsOf(F);
  const int64_t blocks = job.rows->k / kQuantBlock;
  const int64_t tiles = (job.row_end - job.row_begin + kTileRows - 1) / kTileRows;
  const int64_t weight_bytes = blocks * kBlockBytes;
  const int64_t row_floats = (job.rows->fine ? 2 : 1) * blocks + (traits.has_min ? blocks : 0);
  // Leftovers of earlier jobs in rows that are not there: their sums are not stored.
  char* const scratch = AmxScratch(weight_bytes + tiles * (blocks * kBlockBytes + row_floats * kTileRows * 4));
  const Tiles t = LayRows(job, traits.has_min, scratch + weight_bytes);
  auto* const expanded = reinterpret_cast<int8_t*>(scratch);
  if (job.rows->fine || traits.group == 16) {
    _tile_loadconfig(&kGroupsOf16);
  } else {
    _tile_loadconfig(&kGroupsOf32);
  }
  if (job.rows->fine) {
    Panels<F, true>(job, t, tiles, expanded);
  } else {
    Panels<F, false>(job, t, tiles, expanded);
  }
  _tile_release();
}

void Linear(const QuantPanelJob& job) {
  if (job.row_end - job.row_begin < kLeastRows) return kAvx512VnniQuantKernels.linear(job);
  switch (job.weight->format) {
    case QuantFormat::kQ4_0: return PanelsOf<QuantFormat::kQ4_0>(job);
    case QuantFormat::kQ4_1: return PanelsOf<QuantFormat::kQ4_1>(job);
    case QuantFormat::kQ5_0: return PanelsOf<QuantFormat::kQ5_0>(job);
    case QuantFormat::kQ5_1: return PanelsOf<QuantFormat::kQ5_1>(job);
    case QuantFormat::kQ8_0: return PanelsOf<QuantFormat::kQ8_0>(job);
    case QuantFormat::kQ4_K: return PanelsOf<QuantFormat::kQ4_K>(job);
    case QuantFormat::kQ5_K: return PanelsOf<QuantFormat::kQ5_K>(job);
    case QuantFormat::kQ6_K: return PanelsOf<QuantFormat::kQ6_K>(job);
  }
}

void Quantize(const float* x, const QuantRows& rows, int32_t tile, int32_t count, int32_t row) {
  kAvx512VnniQuantKernels.quantize(x, rows, tile, count, row);
}

void QuantizeTile(const float* x, const QuantRows& rows, int32_t tile) {
  kAvx512VnniQuantKernels.quantize_tile(x, rows, tile);
}

}  // namespace

const QuantKernels kAmxQuantKernels = {Quantize, Linear, QuantizeTile, nullptr, &kAmxWideKernels};

}  // namespace fastllm::ops::cpu
