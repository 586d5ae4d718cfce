#pragma once

#include "ops/contract/common.h"
#include "ops/contract/dense_linear.h"
#include "ops/contract/rms_norm.h"
#include "ops/contract/silu_mul.h"

namespace fastllm::ops {

// Matrices in 8-bit floats (e4m3 of Micikevicius et al. 2022: 4 bits of exponent, 3 of mantissa, no infinity, largest
// 448, NaN 0x7f), each row with a float32 scale of its own. Rows of an activation are tokens, rows of a weight output
// channels; both are made by the same rule:
//   amax  = the largest magnitude of the row, NaN passed over
//   scale = max(amax, 1e-30) * (1 / 448)                        in float32
//   q     = x * (1 / scale), rounded to the nearest, ties to even; 448 where that is more, 0x7f for NaN
// A row that holds an infinity has an infinite scale: its sums are NaN, and no other row's.
struct Fp8Rows {
  uint8_t* q = nullptr;    // [rows, k]
  float* scale = nullptr;  // [rows]
};

struct QuantizeFp8Params {
  Fp8Rows out;
  const void* x = nullptr;  // [num_rows, k]
  int32_t num_rows = 0;
  int32_t k = 0;
};
using QuantizeFp8Fn = void (*)(const QuantizeFp8Params&, const OpContext&);

// Optional: rms_norm and silu_mul whose result, rounded to the type of x as those ops round it, goes straight to 8
// bits. `out` of the params is not used.
using RmsNormFp8Fn = void (*)(const RmsNormParams&, const Fp8Rows&, const OpContext&);
using SiluMulFp8Fn = void (*)(const SiluMulParams&, const Fp8Rows&, const OpContext&);

// out[t, n] = (sum_k x.q[t, k] weight.q[n, k]) * x.scale[t] * weight.scale[n] + bias[n]. Products are exact; sums are
// in float32, except that the matrix units of a GPU may keep as few as 13 bits below the largest of the products that
// they add at once (up to 128 of them where rows are few; of a whole row where they are many). Within 2e-3 of float64,
// relative to the norm of the result, on random data. adds: as in LinearParams.
struct Fp8LinearParams {
  void* out = nullptr;         // [num_rows, n]
  Fp8Rows x;                   // only read
  Fp8Rows weight;              // only read
  const void* bias = nullptr;  // [n] of the type of out, or null
  int32_t num_rows = 0;
  int32_t n = 0;
  int32_t k = 0;
  bool adds = false;
};
using Fp8LinearFn = void (*)(const Fp8LinearParams&, const OpContext&);

// Optional: fp8_linear and silu_mul in one, for the rows of GatesFp8Rows(): weight is [2 n, k], the rows of gate before
// those of up, there is no bias, and out[t, n] = silu(gate) * up of the two products, in float32. n and k are multiples
// of kFp8Multiple.
using Fp8LinearSiluMulFn = Fp8LinearFn;

// Whether fp8_linear_silu_mul is faster than the two ops apart at so many rows (bench/RESULTS.md).
inline constexpr int32_t kMostGatedFp8Rows = 256;
inline constexpr bool GatesFp8Rows(int32_t rows) { return rows > 64 && rows <= kMostGatedFp8Rows; }

// Optional: fp8_linear or, with `gated`, fp8_linear_silu_mul in bfloat16, where the backend needs memory for what its
// blocks leave each other.
struct DenseFp8LinearParams {
  Fp8LinearParams linear;
  bool gated = false;
  void* workspace = nullptr;  // as that of DenseLinearParams, which it may be
};
using DenseFp8LinearFn = void (*)(const DenseFp8LinearParams&, const OpContext&);

// What n and k of a GPU's fp8_linear are multiples of.
inline constexpr int32_t kFp8Multiple = 16;

}  // namespace fastllm::ops
