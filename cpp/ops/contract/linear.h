#pragma once

#include "ops/contract/common.h"

namespace fastllm::ops {

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
};
using LinearFn = void (*)(const LinearParams&, const OpContext&);

}  // namespace fastllm::ops
