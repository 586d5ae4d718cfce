// The seam of the quantised linear: what the baseline code and the code built per instruction set share. As in
// kernels.h, nothing here has a symbol that a linker could merge.
//
// Rows of x are quantised into tiles of at most kQuantTileRows rows; TileRows() cuts a batch into them. A tile of R
// rows that starts at row r0 has, with B = k / 32 blocks:
//   q      [k / 4][R][4] int8 from q + r0 * k
//   scale  [B][R] float from scale + r0 * B: the scale of a block
//   sum    [B][R] float from sum + r0 * B: scale times the sum of the block's q (for formats with a minimum)
//   shift  [B][R] int32 likewise: -offset times the sum of the block's q (for the others)
// In a fine set of rows (x_group 16) scale and shift have a row for each half of a block: [2 B][R] from + 2 r0 B; sum
// has the sum over both halves. shift32 has halves always.
#pragma once

#include "ops/contract/quant_linear.h"

namespace fastllm::ops::cpu {

// Three vectors a row (integers, a half block's sum, the row's sum) leave room in 32 registers for the weights.
inline constexpr int32_t kQuantTileRows = 8;

// Planes of QuantRows that a set of weights needs, as bits.
enum QuantPlanes : uint32_t {
  kPlaneSum = 1u << 0,
  kPlaneShift8 = 1u << 1,
  kPlaneShift16 = 1u << 2,
  kPlaneShift128 = 1u << 3,
  kPlaneShift32Halves = 1u << 4,
};

// Rows of the tile that comes first when `left` rows are left.
static constexpr int32_t TileRows(int32_t left) { return left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1; }

struct QuantRows {
  int8_t* q;
  float* scale;
  float* sum;         // null where not needed, as the following
  int32_t* shift8;    // Q4_0
  int32_t* shift16;   // Q5_0
  int32_t* shift128;  // Q8_0
  int32_t* shift32;   // Q6_K, by halves
  int32_t num_rows;
  int32_t k;
  bool fine;
};

// Panels of one part against some of the rows.
struct QuantPanelJob {
  const QuantRows* rows;
  const QuantWeight* weight;
  QuantPanelLayout layout;  // of the weight
  float* out;               // of row 0 and the part's first column
  const float* bias;        // of the part's first column, or null
  int64_t out_stride;
  int32_t row_begin;  // where a tile starts
  int32_t row_end;    // where one ends
  int32_t panel_begin;
  int32_t panel_end;
};

// Blocks of 32 columns of silu(x gate^T) * (x up^T) against some of the rows, rounded into the rows of a further
// product.
struct QuantGatedJob {
  const QuantRows* rows;    // not fine
  const QuantWeight* gate;  // its rows are a multiple of kQuantBlock
  const QuantWeight* up;    // of the same size and format
  const QuantRows* to;      // not fine; k: the rows of gate
  int32_t row_begin;        // where a tile starts
  int32_t row_end;          // where one ends
  int32_t block_begin;
  int32_t block_end;
};

// Rows of x rounded to bfloat16 (nearest even) for the products of many rows: tiles of 16 rows, [tile][k / 32][16][32].
inline constexpr int32_t kWideTile = 16;
static constexpr int64_t WideValues(int64_t rows, int64_t k) {
  return (rows + kWideTile - 1) / kWideTile * kWideTile * k;
}
// Where row `row` starts; its next 32 values follow 512 further on.
static constexpr int64_t WideRow(int64_t row, int64_t k) {
  return row / kWideTile * kWideTile * k + row % kWideTile * 32;
}

// Panels of one part, or of the two parts of a gated product, against some of those rows.
struct WideJob {
  const QuantWeight* weight;
  const QuantWeight* up;  // gated: goes with `weight` as the gate, of the same size and format; else null
  const uint16_t* x;      // of row 0
  float* out;             // of row 0 and the part's first column
  const float* bias;      // of the part's first column, or null
  int64_t out_stride;
  uint16_t* gated;    // gated, in place of out: silu(gate) * up, in tiles as x has them
  int32_t row_begin;  // a multiple of 32
  int32_t row_end;
  int32_t panel_begin;
  int32_t panel_end;
};

// Products over the weight's values and x, both rounded to bfloat16.
struct WideKernels {
  // Rounds x[0, k) to a row of a tile.
  void (*round)(const float* x, int64_t k, uint16_t* to);
  void (*linear)(const WideJob& job);
};

struct QuantKernels {
  // Quantises row `row` of x, which belongs to the tile of `count` rows that starts at row `tile`.
  void (*quantize)(const float* x, const QuantRows& rows, int32_t tile, int32_t count, int32_t row);
  void (*linear)(const QuantPanelJob& job);
  // All rows of the tile of kQuantTileRows that starts at row `tile`. Null: the arm has none, as the next.
  void (*quantize_tile)(const float* x, const QuantRows& rows, int32_t tile) = nullptr;
  void (*gated)(const QuantGatedJob& job) = nullptr;
  const WideKernels* wide = nullptr;
};

// One row of a packed matrix as floats, [w.k].
void DequantizeRow(const QuantWeight& w, int64_t row, float* out);

extern const QuantKernels kPlainQuantKernels;
extern const QuantKernels kAvx2QuantKernels;
extern const QuantKernels kAvx512VnniQuantKernels;
extern const QuantKernels kAmxQuantKernels;
extern const WideKernels kAmxWideKernels;

}  // namespace fastllm::ops::cpu
