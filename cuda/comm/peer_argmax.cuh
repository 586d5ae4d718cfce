// peer_argmax on a device: a block for each row. contract/peer_argmax.h.
#pragma once

#include <cstdint>

#include "cuda/comm/peer_picks.h"
#include "cuda/comm/peer_reduce.cuh"
#include "cuda/common/launch_order.cuh"

namespace fastllm::cuda {

inline constexpr int kPeerArgmaxThreads = 1024;

// The best of some logits.
struct PeerBest {
  float value = 0.0f;
  uint32_t id = ops::kPeerPickNothing;
  uint32_t finite = 0;
  uint32_t nan = 0;

  __device__ __forceinline__ void Add(float x, uint32_t own) {
    nan |= x != x;
    finite |= fabsf(x) < INFINITY;
    if (x > -INFINITY && (id == ops::kPeerPickNothing || x > value)) {
      value = x;
      id = own;
    }
  }
  __device__ __forceinline__ void Join(const PeerBest& o) {
    nan |= o.nan;
    finite |= o.finite;
    if (o.id == ops::kPeerPickNothing) return;
    if (id == ops::kPeerPickNothing || o.value > value || (o.value == value && o.id < id)) {
      value = o.value;
      id = o.id;
    }
  }
  __device__ __forceinline__ PeerBest OfLane(int distance) const {
    PeerBest o;
    o.value = __shfl_xor_sync(0xffffffffu, value, distance);
    o.id = __shfl_xor_sync(0xffffffffu, id, distance);
    o.finite = __shfl_xor_sync(0xffffffffu, finite, distance);
    o.nan = __shfl_xor_sync(0xffffffffu, nan, distance);
    return o;
  }
};

// Every thread of the first warp gets the block's.
__device__ __forceinline__ PeerBest BlockBest(PeerBest best, PeerBest* shared) {
  for (int d = 16; d > 0; d /= 2) best.Join(best.OfLane(d));
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = best;
  __syncthreads();
  if (threadIdx.x >= 32) return best;
  best = shared[threadIdx.x];
  for (int d = 16; d > 0; d /= 2) best.Join(best.OfLane(d));
  return best;
}

__global__ void __launch_bounds__(kPeerArgmaxThreads)
    PeerArgmaxKernel(const __grid_constant__ ops::PeerArgmaxParams p, bool packed) {
  __shared__ PeerBest shared[kPeerArgmaxThreads / 32];
  WaitForPrevious();
  AllowNext();
  const float* const row = p.logits + int64_t{blockIdx.x} * p.stride;
  PeerBest best;
  if (packed) {
#pragma unroll 4
    for (int32_t i = threadIdx.x; i < p.width / 4; i += kPeerArgmaxThreads) {
      const float4 v = reinterpret_cast<const float4*>(row)[i];
      const uint32_t id = p.first_id + 4 * i;
      best.Add(v.x, id);
      best.Add(v.y, id + 1);
      best.Add(v.z, id + 2);
      best.Add(v.w, id + 3);
    }
  } else {
    for (int32_t i = threadIdx.x; i < p.width; i += kPeerArgmaxThreads) best.Add(row[i], p.first_id + i);
  }
  best = BlockBest(best, shared);
  if (threadIdx.x != 0) return;
  const uint32_t epoch = NextEpoch(p.peers.epochs[blockIdx.x]);
  const int64_t unit = int64_t{blockIdx.x} * ops::kPeerBlockUnits;
  const uint32_t facts = best.nan != 0 ? ops::kPeerPickNan : best.id | (best.finite != 0 ? ops::kPeerPickFinite : 0u);
  PeerMemory memory{p.peers.stop};
  PeerSteps<PeerCodec<float>, PeerMemory> steps(p.peers, epoch, &memory);
  const uint64_t own = uint64_t{facts} << 32 | __float_as_uint(best.value);
  steps.Tell(unit, own);
  p.tokens[blockIdx.x] = PickAmongRanks(p.peers.size, [&](int32_t r, float* value, uint32_t* theirs) {
    uint64_t said = own;
    if (r != p.peers.rank && !steps.Fetch(unit, r, &said)) return false;
    *value = __uint_as_float(static_cast<uint32_t>(said));
    *theirs = static_cast<uint32_t>(said >> 32);
    return true;
  });
  p.peers.epochs[blockIdx.x] = epoch;
}

}  // namespace fastllm::cuda
