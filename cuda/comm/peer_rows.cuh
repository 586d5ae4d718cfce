// peer_rows_norm on a device: the sum over ranks of many rows, with what follows it. contract/peer_rows.h.
#pragma once

#include <cstdint>

#include "cuda/comm/peer_reduce.cuh"
#include "cuda/comm/peer_steps.h"
#include "cuda/common/launch_order.cuh"
#include "cuda/common/reduce.cuh"
#include "cuda/common/types.cuh"
#include "ops/contract/peer_rows.h"

namespace fastllm::cuda {

inline constexpr int kPeerRowThreads = 512;

// What this rank puts before a flag can be read by who has seen the flag.
__device__ __forceinline__ void RaiseFlag(uint32_t* flag, uint32_t epoch) {
  asm volatile("fence.acq_rel.sys;\n\tst.relaxed.sys.global.b32 [%0], %1;" ::"l"(flag), "r"(epoch) : "memory");
}
__device__ __forceinline__ void AwaitFlag(const uint32_t* flag, uint32_t epoch, const uint32_t* stop) {
  constexpr uint32_t kLooks = 4096;  // between looks at the word in host memory, which is far away
  for (uint32_t looks = 1;; ++looks) {
    uint32_t seen, stopped = 0;
    asm volatile("ld.acquire.sys.global.b32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
    if (seen == epoch) return;
    if (looks % kLooks == 0) asm volatile("ld.relaxed.sys.b32 %0, [%1];" : "=r"(stopped) : "l"(stop) : "memory");
    if (stopped != 0) return;
  }
}

// This rank's part of a row to all peers.
template <typename T>
__device__ __forceinline__ void TellRow(const ops::PeerRowsNormParams& p, int32_t row, uint32_t epoch, int32_t packs) {
  constexpr int kSize = Pack<T>::kSize;
  const ops::PeerRowsBoxes& b = p.peers;
  const T* const x = static_cast<const T*>(p.norm.x) + int64_t{row} * p.norm.hidden;
  for (auto i = static_cast<int32_t>(threadIdx.x); i < packs; i += static_cast<int32_t>(blockDim.x)) {
    const Pack<T> own = LoadPack(x + i * kSize);
    for (int32_t k = 1; k < b.size; ++k) {
      const int32_t peer = (b.rank + k) % b.size;
      StorePack(static_cast<T*>(ops::PeerRowAt(b, peer, b.rank, row, epoch)) + i * kSize, own);
    }
  }
  __syncthreads();
  const auto peer = static_cast<int32_t>(threadIdx.x);
  if (peer < b.size && peer != b.rank) RaiseFlag(ops::PeerRowFlag(b, peer, b.rank, row, epoch), epoch);
}

__device__ __forceinline__ void AwaitRow(const ops::PeerRowsBoxes& b, int32_t row, uint32_t epoch) {
  const auto peer = static_cast<int32_t>(threadIdx.x);
  if (peer < b.size && peer != b.rank) AwaitFlag(ops::PeerRowFlag(b, b.rank, peer, row, epoch), epoch, b.stop);
  __syncthreads();
}

// A block does rows in ascending order and tells of the next one before it waits for one; all blocks are on the device
// at once, so that the first row that is not done has a block on every rank.
template <typename T, int kPacks>
__global__ void __launch_bounds__(kPeerRowThreads, kPacks == 1 ? 4 : 2)
    PeerRowsNormKernel(const __grid_constant__ ops::PeerRowsNormParams p) {
  constexpr int kSize = Pack<T>::kSize;
  __shared__ float shared[32];
  WaitForPrevious();
  AllowNext();
  const int32_t packs = p.norm.hidden / kSize;
  int32_t row = blockIdx.x;
  uint32_t epoch = NextEpoch(p.peers.epochs[row]), next_epoch = 0;
  TellRow<T>(p, row, epoch, packs);
  FetchWeight(p.next);
  for (; row < p.norm.num_tokens; row += gridDim.x, epoch = next_epoch) {
    const auto next = static_cast<int32_t>(row + gridDim.x);
    if (next < p.norm.num_tokens) {
      next_epoch = NextEpoch(p.peers.epochs[next]);
      TellRow<T>(p, next, next_epoch, packs);
    }
    AwaitRow(p.peers, row, epoch);
    const int64_t first = int64_t{row} * p.norm.hidden;
    T* const residual = static_cast<T*>(p.norm.residual) + first;
    Pack<T> own[kPacks];
    float squares = 0.0f;
#pragma unroll
    for (int j = 0; j < kPacks; ++j) {
      const auto i = static_cast<int32_t>(j * blockDim.x + threadIdx.x);
      if (i >= packs) break;
      own[j] = LoadPack(static_cast<const T*>(p.norm.x) + first + i * kSize);
      const Pack<T> before = LoadPack(residual + i * kSize);
      float sum[kSize] = {};
      for (int32_t r = 0; r < p.peers.size; ++r) {
        Pack<T> part = own[j];
        if (r != p.peers.rank) {
          const auto* const from = static_cast<const T*>(ops::PeerRowAt(p.peers, p.peers.rank, r, row, epoch));
          *reinterpret_cast<uint4*>(&part) = __ldcg(reinterpret_cast<const uint4*>(from + i * kSize));
        }
#pragma unroll
        for (int e = 0; e < kSize; ++e) sum[e] = r == 0 ? ToFloat(part.v[e]) : sum[e] + ToFloat(part.v[e]);
      }
#pragma unroll
      for (int e = 0; e < kSize; ++e) {
        own[j].v[e] = FromFloat<T>(ToFloat(FromFloat<T>(sum[e])) + ToFloat(before.v[e]));
        squares += ToFloat(own[j].v[e]) * ToFloat(own[j].v[e]);
      }
      StorePack(residual + i * kSize, own[j]);
    }
    const float scale = rsqrtf(BlockSum(squares, shared) / static_cast<float>(p.norm.hidden) + p.norm.eps);
#pragma unroll
    for (int j = 0; j < kPacks; ++j) {
      const auto i = static_cast<int32_t>(j * blockDim.x + threadIdx.x);
      if (i >= packs) break;
      const Pack<T> weight = LoadPack(static_cast<const T*>(p.norm.weight) + i * kSize);
#pragma unroll
      for (int e = 0; e < kSize; ++e) {
        own[j].v[e] = FromFloat<T>(ToFloat(own[j].v[e]) * scale * ToFloat(weight.v[e]));
      }
      StorePack(static_cast<T*>(p.norm.out) + first + i * kSize, own[j]);
    }
    if (threadIdx.x == 0) p.peers.epochs[row] = epoch;
  }
}

}  // namespace fastllm::cuda
