// How products of up to 128 rows (cuda/gemm/few_stream.cuh) are launched.
#pragma once

#include <string>

#include "core/base/check.h"
#include "cuda/gemm/few_stream.cuh"
#include "cuda/launch/launch.h"
#include "cuda/launch/overlap.cuh"
#include "cuda/launch/tensor_map.h"
#include "ops/contract/linear.h"

namespace fastllm::cuda {

// splits: blocks that share k, a cluster. ahead: FewArgs. Throws InternalError where l is not as the kernel wants it.
template <typename Shape>
void LaunchFew(const ops::LinearParams& l, int32_t splits, int32_t ahead, cudaStream_t stream, const char* op) {
  FASTLLM_CHECK(l.num_rows <= Shape::kTokens && l.n % 16 == 0 && l.k % 8 == 0 && Aligned16(l.x) &&
                    Aligned16(l.weight) && Aligned16(l.out) && !l.out_f32,
                std::string(op) + ": " + std::to_string(l.num_rows) + " rows of " + std::to_string(l.k) + " to " +
                    std::to_string(l.n) + "; at most " + std::to_string(Shape::kTokens) +
                    " rows, multiples of 8 and 16, 16-byte aligned");
  FewArgs a;
  a.weight = MakeRowPairBoxes({l.weight, l.n, l.k, /*gated=*/false, Shape::kRows}, op);
  a.x = MakeMatrixBoxes({l.x, l.num_rows, l.k, Shape::kTokens}, op);
  a.out = static_cast<bf16*>(l.out);
  a.bias = static_cast<const bf16*>(l.bias);
  a.m = l.num_rows;
  a.n = l.n;
  a.k = l.k;
  a.ahead = ahead;
  const auto kernel = &FewStreamKernel<Shape>;
  AllowSharedMemory(reinterpret_cast<const void*>(kernel), Shape::kSharedBytes, op);
  LaunchCluster(kernel, dim3(splits, CeilDiv(l.n, Shape::kRows)), splits, Shape::kThreads, Shape::kSharedBytes, stream,
                op, a);
}

}  // namespace fastllm::cuda
