// The op over a gated MLP of quantised weights, as wide_linear.h has that of quant_mlp.
#pragma once

#include "ops/contract/quant_linear.h"
#include "ops/cpu/quant_kernels.h"

namespace fastllm::ops::cpu {

// quant_mlp_exact of an arm that has QuantKernels::gated. Throws InternalError when the weights do not fit together.
void RunQuantMlpExact(const QuantKernels& kernels, const QuantMlpParams& p, const OpContext& ctx);

template <const QuantKernels& K>
void QuantMlpExactOp(const QuantMlpParams& p, const OpContext& ctx) {
  RunQuantMlpExact(K, p, ctx);
}

}  // namespace fastllm::ops::cpu
