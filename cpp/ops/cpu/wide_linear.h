// Quantised products of many rows in bfloat16, for arms that have WideKernels.
#pragma once

#include "ops/contract/quant_linear.h"
#include "ops/cpu/quant_kernels.h"

namespace fastllm::ops::cpu {

// As quant_linear without batch_invariant; p has been checked.
void RunWideLinear(const WideKernels& kernels, const QuantLinearParams& p, const OpContext& ctx);

// Throws InternalError for what the contract of either MLP op excludes.
void CheckMlp(const QuantMlpParams& p);
void RunQuantMlp(const WideKernels& kernels, const QuantMlpParams& p, const OpContext& ctx);

template <const WideKernels& K>
void QuantMlpOp(const QuantMlpParams& p, const OpContext& ctx) {
  RunQuantMlp(K, p, ctx);
}

}  // namespace fastllm::ops::cpu
