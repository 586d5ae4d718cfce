// The seam of the linear over 16-bit weights: what the baseline code and the code built per instruction set share. As
// in kernels.h, nothing here has a symbol that a linker could merge.
#pragma once

#include "ops/contract/half_linear.h"

namespace fastllm::ops::cpu {

// Rows of x are kept for a multiple of this many rows, so that a kernel may read whole tiles; what it computes for rows
// that are not there is not stored.
inline constexpr int32_t kHalfRowTile = 16;

// Panels of one part against some of the rows.
struct HalfPanelJob {
  const HalfWeight* weight;
  const void* x;     // row 0: bfloat16, or float32 for a float16 weight
  int64_t x_stride;  // elements between rows; rows of bfloat16 have HalfPaddedK(k), filled up with zeros
  float* out;        // of row 0 and the part's first column
  const float* bias;
  int64_t out_stride;
  int32_t row_begin;  // a multiple of kHalfRowTile
  int32_t row_end;
  int32_t panel_begin;
  int32_t panel_end;
};

struct HalfKernels {
  // x[0, k) rounded to bfloat16, then zeros up to `padded`.
  void (*round)(const float* x, int64_t k, int64_t padded, uint16_t* out);
  void (*bfloat)(const HalfPanelJob& job);  // bfloat16 weights
  void (*half)(const HalfPanelJob& job);    // float16 weights
};

extern const HalfKernels kPlainHalfKernels;
extern const HalfKernels kAvx2HalfKernels;
extern const HalfKernels kAvx512HalfKernels;
extern const HalfKernels kAvx512Bf16HalfKernels;
extern const HalfKernels kAmxHalfKernels;

}  // namespace fastllm::ops::cpu
