// Sums over a warp and a block, in one fixed order: the same inputs give the same bits.
#pragma once

#include <cstdint>

namespace fastllm::cuda {

// Sum over groups of `kWidth` neighbouring lanes; every lane gets it.
template <int kWidth = 32, typename T>
__device__ __forceinline__ T WarpSum(T x) {
#pragma unroll
  for (int d = kWidth / 2; d > 0; d /= 2) x += __shfl_xor_sync(0xffffffffu, x, d);
  return x;
}

// Sum over the block; every thread gets it. shared: 32 elements; may be reused after the next barrier. blockDim.x is a
// multiple of 32.
template <typename T>
__device__ __forceinline__ T BlockSum(T x, T* shared) {
  const int lane = threadIdx.x & 31;
  const int warps = blockDim.x >> 5;
  x = WarpSum(x);
  if (warps == 1) return x;
  if (lane == 0) shared[threadIdx.x >> 5] = x;
  __syncthreads();
  return WarpSum(lane < warps ? shared[lane] : T{0});
}

}  // namespace fastllm::cuda
