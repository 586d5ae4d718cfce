// The ops over 16-bit weights as the table holds them.
#pragma once

#include "ops/cpu/half_kernels.h"
#include "ops/cpu/isa.h"

namespace fastllm::ops::cpu {

// Throws InternalError when the parts do not fit together.
void RunHalfLinear(const HalfKernels& kernels, const HalfLinearParams& p, const OpContext& ctx);
// An id outside the vocabulary throws InternalError.
void HalfEmbedding(const HalfEmbeddingParams& p, const OpContext& ctx);

template <const HalfKernels& K>
void HalfLinearOp(const HalfLinearParams& p, const OpContext& ctx) {
  RunHalfLinear(K, p, ctx);
}

// half_linear and half_embedding of the arms up to `isa`.
void RegisterHalfOps(OpTable& table, CpuIsa isa);

}  // namespace fastllm::ops::cpu
