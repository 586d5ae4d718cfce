// The linear over bfloat16 weights with AMX tiles. A panel is the tile of the weight as the instruction wants it. Every
// number of rows takes this way, so that a row has the same bits in every batch. Float16 weights go to the AVX-512
// kernel.
#include "ops/cpu/half_kernels.h"
#include "ops/cpu/isa/amx_bfloat.h"

namespace fastllm::ops::cpu {
namespace {

static_assert(kTileRows == kHalfRowTile);
constexpr int64_t kPrefetchTiles = 3;  // how far ahead of the first tile of rows the weight is asked for

// Panels side by side in memory; `count` is 0 where they are near already.
struct StoredPanels {
  const char* data;  // of panel 0
  int64_t panel_bytes;
  int count;

  // The tile some steps ahead of each; the panels of the next group follow.
  void Prepare(int64_t step) const {
    const int64_t ahead = (step + kPrefetchTiles) * kTileBytes;
    const int64_t jump = ahead < panel_bytes ? 0 : (count - 1) * panel_bytes;
    for (int p = 0; p < count; ++p) {
      const char* line = data + p * panel_bytes + ahead + jump;
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) _mm_prefetch(line + 64 * i, _MM_HINT_T0);
    }
  }
  const char* At(int p, int64_t step) const { return data + p * panel_bytes + step * kTileBytes; }
};

// `count` panels from `panel` as rows from `row` meet them.
StoredPanels PanelsOf(const HalfPanelJob& job, int32_t row, int32_t panel, int count) {
  const int64_t panel_bytes = HalfPanelValues(job.weight->k) * 2;
  return {reinterpret_cast<const char*>(job.weight->data) + panel * panel_bytes, panel_bytes,
          row == job.row_begin ? count : 0};
}

TileOfX RowsOf(const HalfPanelJob& job, int32_t row) {
  const int64_t bytes = job.x_stride * 2;
  return {static_cast<const char*>(job.x) + row * bytes, bytes, 64, kTileRows * bytes};
}

void Store(const HalfPanelJob& job, const float* sums, int32_t row, int32_t panel) {
  const int32_t n = panel * kHalfPanel;
  const int32_t left = job.row_end - row;
  StoreTile({job.out + int64_t{row} * job.out_stride + n, job.out_stride, job.bias == nullptr ? nullptr : job.bias + n,
             left < kTileRows ? left : kTileRows, job.weight->n - n},
            sums);
}

void OneAndOne(const HalfPanelJob& job, int64_t steps, int32_t row, int32_t panel, float* sums) {
  StoredPanels w = PanelsOf(job, row, panel, 1);
  RowsAgainstOne(RowsOf(job, row), steps, w, 0, sums);
  Store(job, sums, row, panel);
}

// 32 rows against panels [begin, end).
void TwoTiles(const HalfPanelJob& job, int64_t steps, int32_t row, int32_t begin, int32_t end, float* sums) {
  int32_t panel = begin;
  for (; panel + 2 <= end; panel += 2) {
    StoredPanels w = PanelsOf(job, row, panel, 2);
    TwiceRowsAgainstTwo(RowsOf(job, row), steps, w, sums);
    for (int i = 0; i < 4; ++i) Store(job, sums + 256 * i, row + i / 2 * kTileRows, panel + i % 2);
  }
  if (panel >= end) return;
  for (int i = 0; i < 2; ++i) OneAndOne(job, steps, row + i * kTileRows, panel, sums);
}

// 16 rows or fewer.
void OneTile(const HalfPanelJob& job, int64_t steps, int32_t row, int32_t begin, int32_t end, float* sums) {
  int32_t panel = begin;
  for (; panel + 4 <= end; panel += 4) {
    StoredPanels w = PanelsOf(job, row, panel, 4);
    RowsAgainstFour(RowsOf(job, row), steps, w, sums);
    for (int p = 0; p < 4; ++p) Store(job, sums + 256 * p, row, panel + p);
  }
  for (; panel < end; ++panel) OneAndOne(job, steps, row, panel, sums);
}

// Two panels pass by all rows before the next two come: what the first rows brought from memory is near for the others
// (groups of panels the size of the second-level cache were a third slower with 64 rows).
void BFloatLinear(const HalfPanelJob& job) {
  alignas(64) float sums[4 * 256];
  const int64_t steps = HalfPaddedK(job.weight->k) / kHalfStep;
  const int32_t group = job.row_end - job.row_begin > kTileRows ? 2 : 4;
  _tile_loadconfig(&kWholeTiles);
  for (int32_t begin = job.panel_begin; begin < job.panel_end; begin += group) {
    const int32_t end = job.panel_end - begin < group ? job.panel_end : begin + group;
    int32_t row = job.row_begin;
    for (; job.row_end - row > kTileRows; row += 2 * kTileRows) TwoTiles(job, steps, row, begin, end, sums);
    if (row < job.row_end) OneTile(job, steps, row, begin, end, sums);
  }
  _tile_release();
}

void Round(const float* x, int64_t k, int64_t padded, uint16_t* out) { kAvx512HalfKernels.round(x, k, padded, out); }
void Half(const HalfPanelJob& job) { kAvx512HalfKernels.half(job); }

}  // namespace

const HalfKernels kAmxHalfKernels = {Round, BFloatLinear, Half};

}  // namespace fastllm::ops::cpu
