#pragma once

#include "ops/contract/common.h"

namespace fastllm::ops {

// residual == nullptr:  out = rms(x) * weight
// residual != nullptr:  residual += x;  out = rms(residual) * weight        (residual add fused, in place)
// rms(v) = v / sqrt(mean(v^2) + eps), the mean in float32. out may be x.  Zhang & Sennrich 2019.
struct RmsNormParams {
  void* out = nullptr;           // [num_tokens, hidden]
  const void* x = nullptr;       // [num_tokens, hidden]
  void* residual = nullptr;      // [num_tokens, hidden] or null
  const void* weight = nullptr;  // [hidden]
  int32_t num_tokens = 0;
  int32_t hidden = 0;
  float eps = 1e-5f;
};
using RmsNormFn = void (*)(const RmsNormParams&, const OpContext&);

}  // namespace fastllm::ops
