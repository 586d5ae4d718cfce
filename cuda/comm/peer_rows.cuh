// peer_rows_norm on a device: the sum over ranks of many rows, with what follows it. contract/peer_rows.h.
#pragma once

#include <cstdint>

#include "cuda/comm/peer_reduce.cuh"
#include "cuda/comm/peer_steps.h"
#include "cuda/comm/peer_words.h"
#include "cuda/common/launch_order.cuh"
#include "cuda/common/reduce.cuh"
#include "cuda/common/types.cuh"
#include "ops/contract/peer_rows.h"

namespace fastllm::cuda {

inline constexpr int kPeerRowThreads = 512;

// Four words of a box, each of them read and written whole.
template <typename T>
__device__ __forceinline__ void PutPack(void* to, const Pack<T>& pack) {
  const uint4 w = *reinterpret_cast<const uint4*>(&pack);
  asm volatile("st.relaxed.sys.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(ToBox(w.x)), "r"(ToBox(w.y)),
               "r"(ToBox(w.z)), "r"(ToBox(w.w))
               : "memory");
}
// Waits until all are there, and puts zeros back.
template <typename T>
__device__ __forceinline__ Pack<T> TakePack(void* from, const uint32_t* stop) {
  constexpr uint32_t kLooks = 4096;
  uint4 w;
  for (uint32_t looks = 1;; ++looks) {
    asm volatile("ld.relaxed.sys.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w)
                 : "l"(from)
                 : "memory");
    if (w.x != 0 && w.y != 0 && w.z != 0 && w.w != 0) break;
    if (looks % kLooks == 0 && PeerMemory{stop}.Stopped()) break;
  }
  asm volatile("st.relaxed.sys.global.v4.b32 [%0], {%1, %1, %1, %1};" ::"l"(from), "r"(0) : "memory");
  w = {FromBox(w.x), FromBox(w.y), FromBox(w.z), FromBox(w.w)};
  return *reinterpret_cast<const Pack<T>*>(&w);
}

// This rank's part of a row, into own and to the peer.
template <typename T, int kPacks>
__device__ __forceinline__ void TellRow(const ops::PeerRowsNormParams& p, int32_t row, uint32_t epoch, Pack<T>* own) {
  constexpr int kSize = Pack<T>::kSize;
  const ops::PeerRowsBoxes& b = p.peers;
  const int32_t packs = p.norm.hidden / kSize;
  const T* const x = static_cast<const T*>(p.norm.x) + int64_t{row} * p.norm.hidden;
  T* const box = static_cast<T*>(ops::PeerRowAt(b, 1 - b.rank, b.rank, row, epoch));
#pragma unroll
  for (int j = 0; j < kPacks; ++j) {
    const auto i = static_cast<int32_t>(j * blockDim.x + threadIdx.x);
    if (i < packs) own[j] = LoadPack(x + i * kSize);
  }
#pragma unroll
  for (int j = 0; j < kPacks; ++j) {
    const auto i = static_cast<int32_t>(j * blockDim.x + threadIdx.x);
    if (i < packs) PutPack(box + i * kSize, own[j]);
  }
}

// residual + (own + part), rounded as the ops apart would, into own; squares of it are added. That is the order of the
// ranks, as it makes no difference between two.
template <typename T>
__device__ __forceinline__ void AddPack(Pack<T>& own, const Pack<T>& part, const Pack<T>& residual, float& squares) {
#pragma unroll
  for (int e = 0; e < Pack<T>::kSize; ++e) {
    const float sum = ToFloat(FromFloat<T>(ToFloat(own.v[e]) + ToFloat(part.v[e])));
    own.v[e] = FromFloat<T>(sum + ToFloat(residual.v[e]));
    squares += ToFloat(own.v[e]) * ToFloat(own.v[e]);
  }
}

template <typename T>
__device__ __forceinline__ void ScalePack(Pack<T>& own, const Pack<T>& weight, float scale) {
#pragma unroll
  for (int e = 0; e < Pack<T>::kSize; ++e) {
    own.v[e] = FromFloat<T>(ToFloat(own.v[e]) * scale * ToFloat(weight.v[e]));
  }
}

// Blocks of a multiprocessor.
template <int kPacks>
inline constexpr int kPeerRowBlocks = kPacks <= 2 ? 2 : 1;

// Of two ranks. A block does rows in ascending order and tells of the next one before it waits for one; all blocks are
// on the device at once, so that the first row that is not done has a block on every rank.
template <typename T, int kPacks>
__global__ void __launch_bounds__(kPeerRowThreads, kPeerRowBlocks<kPacks>)
    PeerRowsNormKernel(const __grid_constant__ ops::PeerRowsNormParams p) {
  constexpr int kSize = Pack<T>::kSize;
  __shared__ float shared[2][32];  // in turns: no barrier between rows
  WaitForPrevious();
  AllowNext();
  const ops::PeerRowsBoxes& b = p.peers;
  const int32_t packs = p.norm.hidden / kSize;
  Pack<T> own[kPacks], ahead[kPacks], before[kPacks];
  int32_t row = blockIdx.x;
  uint32_t epoch = NextEpoch(b.epochs[row]), next_epoch = 0;
  TellRow<T, kPacks>(p, row, epoch, own);
  FetchWeight(p.next);
  const auto weight_at = [&](int32_t i) { return LoadPack(static_cast<const T*>(p.norm.weight) + i * kSize); };
  Pack<T> weight;  // where a thread has one pack: there before it is needed
  if (kPacks == 1 && static_cast<int32_t>(threadIdx.x) < packs) weight = weight_at(threadIdx.x);
  for (int32_t turn = 0;; turn ^= 1) {
    const int64_t first = int64_t{row} * p.norm.hidden;
    T* const residual = static_cast<T*>(p.norm.residual) + first;
#pragma unroll
    for (int j = 0; j < kPacks; ++j) {
      const auto i = static_cast<int32_t>(j * blockDim.x + threadIdx.x);
      if (i < packs) before[j] = LoadPack(residual + i * kSize);
    }
    const auto next = static_cast<int32_t>(row + gridDim.x);
    if (next < p.norm.num_tokens) {
      next_epoch = NextEpoch(b.epochs[next]);
      TellRow<T, kPacks>(p, next, next_epoch, ahead);
    }
    T* const box = static_cast<T*>(ops::PeerRowAt(b, b.rank, 1 - b.rank, row, epoch));
    float squares = 0.0f;
#pragma unroll
    for (int j = 0; j < kPacks; ++j) {
      const auto i = static_cast<int32_t>(j * blockDim.x + threadIdx.x);
      if (i >= packs) break;
      AddPack(own[j], TakePack<T>(box + i * kSize, b.stop), before[j], squares);
      StorePack(residual + i * kSize, own[j]);
    }
    const float scale = rsqrtf(BlockSum(squares, shared[turn]) / static_cast<float>(p.norm.hidden) + p.norm.eps);
#pragma unroll
    for (int j = 0; j < kPacks; ++j) {
      const auto i = static_cast<int32_t>(j * blockDim.x + threadIdx.x);
      if (i >= packs) break;
      ScalePack(own[j], kPacks == 1 ? weight : weight_at(i), scale);
      StorePack(static_cast<T*>(p.norm.out) + first + i * kSize, own[j]);
    }
    if (threadIdx.x == 0) b.epochs[row] = epoch;  // its readers of this call are past the barrier of the sum
    if (next >= p.norm.num_tokens) return;
    row = next;
    epoch = next_epoch;
#pragma unroll
    for (int j = 0; j < kPacks; ++j) own[j] = ahead[j];
  }
}

}  // namespace fastllm::cuda
