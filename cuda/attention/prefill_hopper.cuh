// The prefill kernel for Hopper: the plan and rows of prefill.cuh, in one persistent block per multiprocessor. A
// producer warpgroup (hopper_produce.cuh) takes work items, fetches Q and streams K and V through a ring of tiles; two
// consumer warpgroups (hopper_consume.cuh) of 64 rows each take turns on the matrix units, so that one computes its
// softmax while the other multiplies, and within a warpgroup the softmax of a tile runs beside P V of the tile before
// (Shah et al., FlashAttention-3, 2024). Tiles of an item go from its last column to its first, so that only the first
// ones mask.
#pragma once

#include "cuda/attention/hopper_consume.cuh"
#include "cuda/attention/hopper_produce.cuh"

namespace fastllm::cuda {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

template <int kHeadDim>
__device__ __forceinline__ void InitBarriers(const HopperShared<kHeadDim>& shared) {
  using Shape = HopperShape<kHeadDim>;
  for (uint32_t i = 0; i < Shape::kSlots; ++i) {
    InitBarrier(shared.Full(i), 1);
    InitBarrier(shared.Empty(i), kPrefillWarps);
  }
  InitBarrier(shared.QueriesFull(), kQueryThreads);
  InitBarrier(shared.QueriesEmpty(), kPrefillWarps);
  for (uint32_t i = 0; i < Shape::kPlaces; ++i) InitBarrier(shared.PlaceFull(i), 1);
  InitBarrier(shared.Wanted(), 1);
  FenceBarrierInit();
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

template <typename T, int kHeadDim, bool kCapped>
__global__ void __launch_bounds__(HopperShape<kHeadDim>::kThreads, 1)
    HopperPrefillKernel(const __grid_constant__ HopperArgs<T> args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) char dynamic[];
  char* data = dynamic + (1024 - SharedAddress(dynamic) % 1024) % 1024;
  const HopperShared<kHeadDim> shared{data, SharedAddress(data)};
  if (threadIdx.x == 0) {
    PrefetchMap(&args.k_map);
    PrefetchMap(&args.v_map);
    InitBarriers(shared);
  }
  __syncthreads();
  const uint32_t group = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
  if (group == 0) {
    GiveRegisters<40>();
    if (__shfl_sync(0xffffffffu, threadIdx.x / 32, 0) == 0) {
      ProduceTiles<T, kHeadDim>(args, shared);
    } else {
      ProduceQueries<T, kHeadDim>(args, shared);
    }
  } else {
    TakeRegisters<232>();
    const int row0 = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32 - 4, 0) * 16;
    HopperConsumer<T, kHeadDim, kCapped>{args, shared, group - 1, row0, {shared, group - 1, {}}, {}}.All();
  }
#else
  __trap();  // the launcher never picks it on other devices
#endif
}

}  // namespace fastllm::cuda
