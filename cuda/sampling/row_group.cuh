// The blocks that share one row of logits: a cluster on sm_90 and up, a single block elsewhere. Each holds a contiguous
// slice of the row; results that all need are exchanged through the blocks' shared memory.
#pragma once

#include <cstdint>

#include "cuda/common/reduce.cuh"

namespace fastllm::cuda {

inline constexpr int kSampleThreads = 512;
inline constexpr int kSampleWarps = kSampleThreads / 32;
inline constexpr int kSampleBlocks = 8;  // of a cluster

template <bool kCluster>
struct RowGroup {
  static constexpr int kSize = kCluster ? kSampleBlocks : 1;
  int rank = 0;

  __device__ RowGroup() {
#if __CUDA_ARCH__ >= 900
    if constexpr (kCluster) {
      uint32_t r;
      asm volatile("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(r));
      rank = static_cast<int>(r);
    }
#endif
  }

  // A barrier of all threads of all blocks; shared memory written before it is seen after it.
  __device__ void Sync() const {
#if __CUDA_ARCH__ >= 900
    if constexpr (kCluster) {
      asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n" ::: "memory");
      return;
    }
#endif
    __syncthreads();
  }

  // The address, in block r, of an object in this block's shared memory.
  template <typename T>
  __device__ T* Remote(T* p, int r) const {
#if __CUDA_ARCH__ >= 900
    if constexpr (kCluster) {
      uint64_t a;
      asm("mapa.u64 %0, %1, %2;\n" : "=l"(a) : "l"(reinterpret_cast<uint64_t>(p)), "r"(r));
      return reinterpret_cast<T*>(a);
    }
#endif
    static_cast<void>(r);
    return p;
  }
};

// Shared memory of the exchanges. Two slots in turn: a block can write the next value while a slow one reads the last.
struct Exchange {
  alignas(16) char slot[2][32];
  alignas(16) char all[2][kSampleBlocks][32];
  double warp[2][kSampleWarps];
};

// Every block's `value` (as its thread 0 has it), in rank order, in every thread.
template <typename T, bool kCluster>
__device__ const T* AllGather(const RowGroup<kCluster>& g, Exchange& x, int& turn, const T& value) {
  static_assert(sizeof(T) <= 32);
  turn ^= 1;
  if (threadIdx.x == 0) *reinterpret_cast<T*>(x.slot[turn]) = value;
  g.Sync();
  if (threadIdx.x < g.kSize) {
    *reinterpret_cast<T*>(x.all[turn][threadIdx.x]) = *g.Remote(reinterpret_cast<T*>(x.slot[turn]), threadIdx.x);
  }
  __syncthreads();
  return reinterpret_cast<const T*>(x.all[turn]);
}

// Stride of AllGather's result for a T of less than 32 bytes.
template <typename T>
__device__ const T& Gathered(const T* all, int rank) {
  return *reinterpret_cast<const T*>(reinterpret_cast<const char*>(all) + rank * 32);
}

// Sum over the whole group, in one fixed order.
template <bool kCluster>
__device__ double GroupSum(const RowGroup<kCluster>& g, Exchange& x, int& turn, double value) {
  value = WarpSum(value);
  const int next = turn ^ 1;
  if ((threadIdx.x & 31) == 0) x.warp[next][threadIdx.x >> 5] = value;
  __syncthreads();
  double block = 0.0;
  if (threadIdx.x == 0) {
    for (int w = 0; w < kSampleWarps; ++w) block += x.warp[next][w];
  }
  const double* all = AllGather(g, x, turn, block);
  double sum = 0.0;
  for (int r = 0; r < g.kSize; ++r) sum += Gathered(all, r);
  return sum;
}

}  // namespace fastllm::cuda
