// peer_piece_norm on a device: the sum over ranks of rows that copies have brought, with what follows it.
// contract/peer_piece.h.
#pragma once

#include <cstdint>

#include "cuda/comm/peer_rows.cuh"
#include "cuda/common/launch_order.cuh"
#include "cuda/common/reduce.cuh"
#include "cuda/common/types.cuh"
#include "ops/contract/peer_piece.h"

namespace fastllm::cuda {

// What copies of a peer have put before the flag can be read then.
__device__ __forceinline__ void AwaitFlag(const uint32_t* flag, uint32_t epoch, const uint32_t* stop) {
  constexpr uint32_t kLooks = 4096;  // between looks at the word in host memory, which is far away
  for (uint32_t looks = 1;; ++looks) {
    uint32_t seen;
    asm volatile("ld.acquire.sys.global.b32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
    if (seen == epoch) return;
    if (looks % kLooks == 0 && PeerMemory{stop}.Stopped()) return;
  }
}

// Of two ranks, a block for each row. Copies bring the peer's rows: all are there when the flag says so.
template <typename T, int kPacks>
__global__ void __launch_bounds__(kPacks <= 2 ? 256 : 512, kPacks <= 2 ? 5 : 1)
    PeerPieceNormKernel(const __grid_constant__ ops::PeerPieceNormParams p) {
  constexpr int kSize = Pack<T>::kSize;
  __shared__ float shared[32];
  WaitForPrevious();
  AllowNext();
  const int32_t packs = p.norm.hidden / kSize;
  const int64_t first = int64_t{blockIdx.x} * p.norm.hidden;
  T* const residual = static_cast<T*>(p.norm.residual) + first;
  Pack<T> own[kPacks], before[kPacks];
#pragma unroll
  for (int j = 0; j < kPacks; ++j) {
    const auto i = static_cast<int32_t>(j * blockDim.x + threadIdx.x);
    if (i >= packs) break;
    own[j] = LoadPack(static_cast<const T*>(p.norm.x) + first + i * kSize);
    before[j] = LoadPack(residual + i * kSize);
  }
  const int32_t peer = 1 - p.rank;
  if (threadIdx.x == 0) AwaitFlag(p.flags[peer], p.epoch, p.stop);
  __syncthreads();
  const T* const box = static_cast<const T*>(p.parts[peer]) + first;
  Pack<T> part[kPacks];
#pragma unroll
  for (int j = 0; j < kPacks; ++j) {
    const auto i = static_cast<int32_t>(j * blockDim.x + threadIdx.x);
    if (i < packs) *reinterpret_cast<uint4*>(&part[j]) = __ldcg(reinterpret_cast<const uint4*>(box + i * kSize));
  }
  float squares = 0.0f;
#pragma unroll
  for (int j = 0; j < kPacks; ++j) {
    const auto i = static_cast<int32_t>(j * blockDim.x + threadIdx.x);
    if (i >= packs) break;
    AddPack(own[j], part[j], before[j], squares);
    StorePack(residual + i * kSize, own[j]);
  }
  const float scale = rsqrtf(BlockSum(squares, shared) / static_cast<float>(p.norm.hidden) + p.norm.eps);
#pragma unroll
  for (int j = 0; j < kPacks; ++j) {
    const auto i = static_cast<int32_t>(j * blockDim.x + threadIdx.x);
    if (i >= packs) break;
    ScalePack(own[j], LoadPack(static_cast<const T*>(p.norm.weight) + i * kSize), scale);
    StorePack(static_cast<T*>(p.norm.out) + first + i * kSize, own[j]);
  }
}

}  // namespace fastllm::cuda
