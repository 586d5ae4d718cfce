#pragma once

#include "ops/contract/common.h"

namespace fastllm::ops {

// Most rows of the launchers that read the weight once and straight from memory ("skinny"); others have no limit.
inline constexpr int32_t kSkinnyRows = 32;

// Fewer rows gain nothing when what comes after the product no longer adds (bench/RESULTS.md).
inline constexpr int32_t kLeastAddRows = 257;

// out[t, n] = sum_k x[t, k] * weight[n, k] + bias[n]. Each element is summed in one order that depends on k alone, so
// a row has the same bits whatever the number of rows beside it and of threads.
struct LinearParams {
  void* out = nullptr;           // [num_rows, n]
  const void* x = nullptr;       // [num_rows, k]
  const void* weight = nullptr;  // [n, k]
  const void* bias = nullptr;    // [n] or null
  int32_t num_rows = 0;
  int32_t n = 0;
  int32_t k = 0;
  bool out_f32 = false;  // out is float32 whatever the type of the others (logits)
  // Of an op with kFeatureAdds, of kLeastAddRows rows and more: out holds numbers of its type (a residual), to which
  // the product is added in float32; the sum is rounded once. Not with out_f32.
  bool adds = false;
};
// linear_silu_mul: out[t, i] = silu(gate) * up of the products with rows i and n + i of a weight [2 n, k]; no bias.
using LinearFn = void (*)(const LinearParams&, const OpContext&);

}  // namespace fastllm::ops
