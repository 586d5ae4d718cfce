// All candidates but cuBLASLt's.
#pragma once

#include "bench/ops/gemm/variant.h"

namespace fastllm::gemm_bench {

void AddVariants(Variants& all);

}  // namespace fastllm::gemm_bench
