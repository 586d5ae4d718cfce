#pragma once

#include "ops/contract/common.h"

namespace fastllm::ops {

// out[t, i] = silu(gate_up[t, i]) * gate_up[t, n + i],  silu(x) = x / (1 + exp(-x))
struct SiluMulParams {
  void* out = nullptr;            // [num_tokens, n]
  const void* gate_up = nullptr;  // [num_tokens, 2 n], gate first
  int32_t num_tokens = 0;
  int32_t n = 0;
};
using SiluMulFn = void (*)(const SiluMulParams&, const OpContext&);

}  // namespace fastllm::ops
