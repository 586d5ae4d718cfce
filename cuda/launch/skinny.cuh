// How products of few rows (cuda/gemm/skinny.cuh) are launched.
#pragma once

#include <string>

#include "core/base/check.h"
#include "cuda/gemm/skinny.cuh"
#include "cuda/launch/launch.h"
#include "cuda/launch/overlap.cuh"

namespace fastllm::cuda {

// At most kMaxRows rows of x: 8 of the fused products, otherwise up to 32.
template <int kMaxRows, SkinnyFinish kFinish, bool kFused, typename T, typename Out>
void LaunchSkinny(const SkinnyArgs<T, Out>& a, cudaStream_t stream, const char* op) {
  static_assert(kMaxRows <= (kFused ? 8 : 32));
  FASTLLM_CHECK(a.m <= kMaxRows && a.k % kSkinnyChunk == 0 && Aligned16(a.x) && Aligned16(a.weight),
                std::string(op) + ": " + std::to_string(a.m) + " rows of " + std::to_string(a.k) +
                    " elements; at most " + std::to_string(kMaxRows) + " rows of a multiple of " +
                    std::to_string(kSkinnyChunk) + ", 16-byte aligned");
  const int32_t blocks = CeilDiv(a.n, kFinish == SkinnyFinish::kGated ? kSkinnyRowsOfWeight / 2 : kSkinnyRowsOfWeight);
  const int32_t shared = a.squares == nullptr ? 0 : CeilDiv(a.m * (a.k / kSkinnyRowsOfWeight), 4) * 16;
  const auto launch = [&](auto kernel) {
    if (shared > 32 * 1024) AllowSharedMemory(reinterpret_cast<const void*>(kernel), shared, op);
    LaunchOverlapped(kernel, dim3(blocks), kSkinnyWarps * 32, shared, stream, op, a);
  };
  // Few blocks: the more on its way in each of them.
  const bool few = blocks <= 2 * CurrentDevice().multiprocessors;
  if (a.m <= 8) {
    few ? launch(&SkinnyLinearKernel<T, Out, 1, kFinish, kFused, 8, 2>)
        : launch(&SkinnyLinearKernel<T, Out, 1, kFinish, kFused, 4, 3>);
  } else if constexpr (kMaxRows > 8) {
    a.m <= 16 ? launch(&SkinnyLinearKernel<T, Out, 2, kFinish, kFused, 4, 2>)
              : launch(&SkinnyLinearKernel<T, Out, 4, kFinish, kFused, 2, 2>);
  }
}

}  // namespace fastllm::cuda
