// How the consumer warpgroups of the Hopper prefill kernel share the ring and the matrix units.
#pragma once

#include "cuda/attention/hopper_shape.cuh"
#include "cuda/common/tma.cuh"

namespace fastllm::cuda {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// A consumer warpgroup's hold on the ring and on the matrix units.
template <int kHeadDim>
struct ConsumerPort {
  const HopperShared<kHeadDim>& shared;
  const uint32_t group;     // warpgroup, 0 or 1
  RingCursor<kHeadDim> at;  // of the next tile

  // This warp has read what it needs of a slot or of the queries.
  __device__ __forceinline__ static void Release(uint32_t barrier) {
    if ((threadIdx.x & 31) == 0) ArriveAt(barrier);
  }
  // The ring's next slot, full.
  __device__ __forceinline__ uint32_t NextSlot() {
    const uint32_t slot = at.slot;
    WaitFor(shared.Full(slot), at.phase);
    at.Advance();
    return slot;
  }
  // This warpgroup's rows of Q.
  __device__ __forceinline__ uint32_t Queries() const {
    return shared.Queries() + group * (64 / 8 * HopperShape<kHeadDim>::kGroupBytes);
  }
  __device__ __forceinline__ void TakeTurn() const { SyncNamed(kTurnBarrier + group, 256); }
  __device__ __forceinline__ void PassTurn() const { ArriveNamed(kTurnBarrier + (group ^ 1), 256); }

  // The tiles of an item past its first go by: it has no rows for this warpgroup.
  __device__ __forceinline__ void Pass(int32_t tiles) {
    for (int32_t left = tiles - 1; left > 0; --left) {
      const uint32_t keys = NextSlot(), values = NextSlot();
      TakeTurn();
      PassTurn();
      Release(shared.Empty(keys));
      Release(shared.Empty(values));
    }
  }
};

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace fastllm::cuda
