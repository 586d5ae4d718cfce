// The linear over bfloat16 weights with AMX tiles: 16 rows of x against 16 rows of the weight, 32 values of k at once.
// A panel is the tile of the weight as the instruction wants it. Every number of rows takes this way, so that a row has
// the same bits in every batch: rows that are not there are zeros or leftovers whose sums nobody stores. Float16
// weights go to the AVX-512 kernel.
#include <immintrin.h>

#include <cstdint>

#include "ops/cpu/half_kernels.h"

namespace fastllm::ops::cpu {
namespace {

constexpr int32_t kTileRows = kHalfRowTile;  // rows of x of a tile
constexpr int64_t kTileBytes = 1024;
constexpr int64_t kPrefetchTiles = 3;  // how far ahead of the first tile of rows the weight is asked for

struct alignas(64) TileConfig {
  uint8_t palette;
  uint8_t start_row;
  uint8_t reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};

// All eight tiles whole: 16 rows of 64 bytes. A constant: the compiler takes ldtilecfg to read eight bytes only, and
// would not write the rest of a local one.
constexpr TileConfig kWholeTiles = {1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};

// Where a block of tiles lies.
struct Place {
  const char* x;  // first row
  int64_t x_stride;
  const char* w;  // first panel
  int64_t panel_bytes;
  int64_t steps;  // of 32 values of k
  bool first;     // the weight comes from memory
};

// Panel p of P side by side, some tiles ahead; the panels of the next group follow.
inline void Prefetch(const Place& at, int64_t step, int p, int panels) {
  const int64_t ahead = (step + kPrefetchTiles) * kTileBytes;
  const int64_t jump = ahead < at.panel_bytes ? 0 : (panels - 1) * at.panel_bytes;
  const char* line = at.w + p * at.panel_bytes + ahead + jump;
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) _mm_prefetch(line + 64 * i, _MM_HINT_T0);
}

// sums: P tiles of 16 x 16, one after the other.
void RowsAgainstFour(const Place& at, float* sums) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t s = 0; s < at.steps; ++s) {
    const char* w = at.w + s * kTileBytes;
    if (at.first) {
      for (int p = 0; p < 4; ++p) Prefetch(at, s, p, 4);
    }
    _tile_loadd(4, at.x + 64 * s, at.x_stride);
    _tile_loadd(5, w, 64);
    _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(6, w + at.panel_bytes, 64);
    _tile_dpbf16ps(1, 4, 6);
    _tile_loadd(7, w + 2 * at.panel_bytes, 64);
    _tile_dpbf16ps(2, 4, 7);
    _tile_loadd(5, w + 3 * at.panel_bytes, 64);
    _tile_dpbf16ps(3, 4, 5);
  }
  _tile_stored(0, sums, 64);
  _tile_stored(1, sums + 256, 64);
  _tile_stored(2, sums + 512, 64);
  _tile_stored(3, sums + 768, 64);
}

void RowsAgainstOne(const Place& at, float* sums) {
  _tile_zero(0);
  for (int64_t s = 0; s < at.steps; ++s) {
    if (at.first) Prefetch(at, s, 0, 1);
    _tile_loadd(4, at.x + 64 * s, at.x_stride);
    _tile_loadd(5, at.w + s * kTileBytes, 64);
    _tile_dpbf16ps(0, 4, 5);
  }
  _tile_stored(0, sums, 64);
}

// 32 rows against two panels: sums of rows 0 to 15 with both, then of rows 16 to 31.
void TwiceRowsAgainstTwo(const Place& at, float* sums) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t s = 0; s < at.steps; ++s) {
    const char* w = at.w + s * kTileBytes;
    const char* x = at.x + 64 * s;
    if (at.first) {
      for (int p = 0; p < 2; ++p) Prefetch(at, s, p, 2);
    }
    _tile_loadd(4, x, at.x_stride);
    _tile_loadd(6, w, 64);
    _tile_loadd(5, x + kTileRows * at.x_stride, at.x_stride);
    _tile_loadd(7, w + at.panel_bytes, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, sums, 64);
  _tile_stored(1, sums + 256, 64);
  _tile_stored(2, sums + 512, 64);
  _tile_stored(3, sums + 768, 64);
}

// A tile of sums to the output.
void StoreTile(const HalfPanelJob& job, const float* sums, int32_t row, int32_t panel) {
  const int32_t n = panel * kHalfPanel;
  const int32_t valid = job.weight->n - n;
  const __mmask16 lanes = valid >= kHalfPanel ? 0xFFFF : static_cast<__mmask16>((1u << valid) - 1);
  const int32_t rows = job.row_end - row < kTileRows ? job.row_end - row : kTileRows;
  const __m512 bias = job.bias == nullptr ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(lanes, job.bias + n);
  float* out = job.out + int64_t{row} * job.out_stride + n;
  for (int32_t r = 0; r < rows; ++r) {
    __m512 v = _mm512_load_ps(sums + 16 * r);
    if (job.bias != nullptr) v = _mm512_add_ps(v, bias);
    _mm512_mask_storeu_ps(out + r * job.out_stride, lanes, v);
  }
}

Place PlaceOf(const HalfPanelJob& job, int32_t row, int32_t panel) {
  const int64_t panel_bytes = HalfPanelValues(job.weight->k) * 2;
  Place at;
  at.x_stride = job.x_stride * 2;
  at.x = static_cast<const char*>(job.x) + row * at.x_stride;
  at.w = reinterpret_cast<const char*>(job.weight->data) + panel * panel_bytes;
  at.panel_bytes = panel_bytes;
  at.steps = panel_bytes / kTileBytes;
  at.first = row == job.row_begin;
  return at;
}

// 32 rows against panels [begin, end).
void TwoTiles(const HalfPanelJob& job, int32_t row, int32_t begin, int32_t end, float* sums) {
  int32_t panel = begin;
  for (; panel + 2 <= end; panel += 2) {
    TwiceRowsAgainstTwo(PlaceOf(job, row, panel), sums);
    for (int i = 0; i < 4; ++i) StoreTile(job, sums + 256 * i, row + i / 2 * kTileRows, panel + i % 2);
  }
  if (panel >= end) return;
  for (int i = 0; i < 2; ++i) {
    RowsAgainstOne(PlaceOf(job, row + i * kTileRows, panel), sums);
    StoreTile(job, sums, row + i * kTileRows, panel);
  }
}

// 16 rows or fewer.
void OneTile(const HalfPanelJob& job, int32_t row, int32_t begin, int32_t end, float* sums) {
  int32_t panel = begin;
  for (; panel + 4 <= end; panel += 4) {
    RowsAgainstFour(PlaceOf(job, row, panel), sums);
    for (int p = 0; p < 4; ++p) StoreTile(job, sums + 256 * p, row, panel + p);
  }
  for (; panel < end; ++panel) {
    RowsAgainstOne(PlaceOf(job, row, panel), sums);
    StoreTile(job, sums, row, panel);
  }
}

// Two panels pass by all rows before the next two come: what the first rows brought from memory is near for the others
// (groups of panels the size of the second-level cache were a third slower with 64 rows).
void BFloatLinear(const HalfPanelJob& job) {
  alignas(64) float sums[4 * 256];
  const int32_t group = job.row_end - job.row_begin > kTileRows ? 2 : 4;
  _tile_loadconfig(&kWholeTiles);
  for (int32_t begin = job.panel_begin; begin < job.panel_end; begin += group) {
    const int32_t end = job.panel_end - begin < group ? job.panel_end : begin + group;
    int32_t row = job.row_begin;
    for (; job.row_end - row > kTileRows; row += 2 * kTileRows) TwoTiles(job, row, begin, end, sums);
    if (row < job.row_end) OneTile(job, row, begin, end, sums);
  }
  _tile_release();
}

void Round(const float* x, int64_t k, int64_t padded, uint16_t* out) { kAvx512HalfKernels.round(x, k, padded, out); }
void Half(const HalfPanelJob& job) { kAvx512HalfKernels.half(job); }

}  // namespace

const HalfKernels kAmxHalfKernels = {Round, BFloatLinear, Half};

}  // namespace fastllm::ops::cpu
