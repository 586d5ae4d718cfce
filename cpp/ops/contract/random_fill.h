#pragma once

#include "ops/contract/common.h"

namespace fastllm::ops {

// out[i] = mean + scale * u, u = (top 24 bits of Mix(key + first + i)) * 2^-23 - 1, uniform on [-1, 1): the same
// float32 on every device, rounded once to the type of out. Dummy weights.
struct RandomFillParams {
  void* out = nullptr;  // [count]
  uint64_t key = 0;
  int64_t first = 0;
  int64_t count = 0;
  float mean = 0.0f;
  float scale = 1.0f;
};
using RandomFillFn = void (*)(const RandomFillParams&, const OpContext&);

}  // namespace fastllm::ops
