// The quantised linear for AVX-512 with VNNI, and a gated MLP's first product with the rounding for its second.
#include "ops/cpu/isa/simd_avx512.h"
#include "ops/cpu/isa/vector_kernels.h"
#include "ops/cpu/isa/vnni_products.h"
#include "ops/cpu/isa/vnni_rows8.h"

namespace fastllm::ops::cpu {
namespace {

template <QuantFormat F, int R>
void Tile(const QuantPanelJob& job, const Panel& w, const Ahead& ahead, int32_t panel, int32_t tile) {
  const QuantRows& rows = *job.rows;
  const int64_t blocks = rows.k / kQuantBlock;
  const RowTile x = TileOf<F>(rows, tile);
  __m512 sum[R];
  if (rows.fine) {
    SumTile<F, R, true>(w, x, blocks, ahead, sum);
  } else {
    SumTile<F, R, false>(w, x, blocks, ahead, sum);
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
    const Panel w = PanelOf(*job.weight, job.layout, panel);
    int32_t index = 0;
    for (int32_t tile = job.row_begin; tile < job.row_end; ++index) {
      const int32_t count = TileRows(job.rows->num_rows - tile);
      const Ahead ahead = AheadOf({w.low}, index, job.row_end - job.row_begin);
      switch (count) {
        case 8: Tile<F, 8>(job, w, ahead, panel, tile); break;
        case 4: Tile<F, 4>(job, w, ahead, panel, tile); break;
        case 2: Tile<F, 2>(job, w, ahead, panel, tile); break;
        default: Tile<F, 1>(job, w, ahead, panel, tile); break;
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

// ---- the gated product ----

constexpr int32_t kGatedRows = 64;  // rows times blocks whose sums wait, in the first-level cache, for their others

// Sums of gate (panels 0, 1 of a block of 32 columns) and up (2, 3): the rows of a block, then those of the next.
using GatedSums = float[4][kGatedRows][kQuantPanel];

template <QuantFormat F, int R>
inline void SumGated(const QuantGatedJob& job, const Panel& w, const Ahead& ahead, int32_t tile,
                     float (*sums)[kQuantPanel]) {
  __m512 sum[R];
  SumTile<F, R, false>(w, TileOf<F>(*job.rows, tile), job.rows->k / kQuantBlock, ahead, sum);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) _mm512_store_ps(sums[r], sum[r]);
}

// One panel against the rows [row, end); the first rows of the job ask for what comes after it.
template <QuantFormat F>
void SumPanel(const QuantGatedJob& job, const Panel& w, const Ahead& next, int32_t row, int32_t end,
              float (*sums)[kQuantPanel]) {
  int32_t index = 0;
  for (int32_t tile = row; tile < end; ++index) {
    const int32_t count = TileRows(job.rows->num_rows - tile);
    const Ahead ahead = row == job.row_begin ? AheadOf(next, index, end - row) : Ahead();
    switch (count) {
      case 8: SumGated<F, 8>(job, w, ahead, tile, sums + (tile - row)); break;
      case 4: SumGated<F, 4>(job, w, ahead, tile, sums + (tile - row)); break;
      case 2: SumGated<F, 2>(job, w, ahead, tile, sums + (tile - row)); break;
      default: SumGated<F, 1>(job, w, ahead, tile, sums + (tile - row)); break;
    }
    tile += count;
  }
}

// silu(gate) * up of block b, rounded for the next product. Its sums start at `at`; those of gate are overwritten.
void RoundGated(const QuantGatedJob& job, GatedSums& sums, int32_t at, int32_t row, int32_t end, int64_t b) {
  for (int32_t i = at; i < at + end - row; ++i) {
    for (int h = 0; h < 2; ++h) Store(sums[h][i], SiluTimes(Load(sums[h][i]), Load(sums[2 + h][i])));
  }
  for (int32_t tile = row; tile < end;) {
    const int32_t count = TileRows(job.rows->num_rows - tile);
    const auto load = [&](int r, int h) { return Load(sums[h][at + tile - row + r]); };
    if (count == kQuantTileRows) {
      QuantizeBlock8<false>(load, *job.to, tile, b);
    } else {
      for (int32_t r = 0; r < count; ++r) QuantizeBlock(load(r, 0), load(r, 1), *job.to, tile, count, r, b);
    }
    tile += count;
  }
}

// Some blocks against some rows: gate's panels, then up's, so that few rows read long runs of either.
template <QuantFormat F>
void GatedRun(const QuantGatedJob& job, int32_t block, int32_t block_end, int32_t row, int32_t end, GatedSums& sums) {
  const QuantPanelLayout layout = PanelLayoutOf(F, job.gate->k);
  for (int side = 0; side < 2; ++side) {
    const QuantWeight& weight = side == 0 ? *job.gate : *job.up;
    const uint8_t* const then =
        side == 0 ? PanelOf(*job.up, layout, 2 * block).low : PanelOf(*job.gate, layout, 2 * block_end).low;
    for (int32_t panel = 2 * block; panel < 2 * block_end; ++panel) {
      const Panel w = PanelOf(weight, layout, panel);
      SumPanel<F>(job, w, {w.low, (2 * block_end - panel) * layout.panel_bytes, then}, row, end,
                  sums[2 * side + panel % 2] + (panel / 2 - block) * (end - row));
    }
  }
  for (int32_t b = block; b < block_end; ++b) RoundGated(job, sums, (b - block) * (end - row), row, end, b);
}

template <QuantFormat F>
void GatedBlocks(const QuantGatedJob& job) {
  alignas(64) GatedSums sums;
  const int32_t rows = job.row_end - job.row_begin;
  const int32_t run = rows < kGatedRows ? kGatedRows / rows : 1;
  for (int32_t block = job.block_begin; block < job.block_end; block += run) {
    const int32_t block_end = block + run < job.block_end ? block + run : job.block_end;
    for (int32_t row = job.row_begin; row < job.row_end; row += kGatedRows) {
      const int32_t end = row + kGatedRows < job.row_end ? row + kGatedRows : job.row_end;
      GatedRun<F>(job, block, block_end, row, end, sums);
    }
  }
}

void Gated(const QuantGatedJob& job) {
  switch (job.gate->format) {
    case QuantFormat::kQ4_0: return GatedBlocks<QuantFormat::kQ4_0>(job);
    case QuantFormat::kQ4_1: return GatedBlocks<QuantFormat::kQ4_1>(job);
    case QuantFormat::kQ5_0: return GatedBlocks<QuantFormat::kQ5_0>(job);
    case QuantFormat::kQ5_1: return GatedBlocks<QuantFormat::kQ5_1>(job);
    case QuantFormat::kQ8_0: return GatedBlocks<QuantFormat::kQ8_0>(job);
    case QuantFormat::kQ4_K: return GatedBlocks<QuantFormat::kQ4_K>(job);
    case QuantFormat::kQ5_K: return GatedBlocks<QuantFormat::kQ5_K>(job);
    case QuantFormat::kQ6_K: return GatedBlocks<QuantFormat::kQ6_K>(job);
  }
}

}  // namespace

const QuantKernels kAvx512VnniQuantKernels = {Quantize, Linear, QuantizeTile, Gated};

}  // namespace fastllm::ops::cpu
