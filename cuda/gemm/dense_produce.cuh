// The ring of stages of the kernel of dense_linear (dense_stream.cuh) and what fills it.
#pragma once

#include "cuda/common/launch_order.cuh"
#include "cuda/common/mma.cuh"
#include "cuda/common/tma.cuh"
#include "cuda/gemm/dense_shape.cuh"

namespace fastllm::cuda {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Shared-memory addresses of a block's ring and buffers.
template <typename Shape>
struct DenseRing {
  uint32_t base;
  __device__ __forceinline__ uint32_t Stage(uint32_t s) const { return base + s * Shape::kStageBytes; }
  __device__ __forceinline__ uint32_t Out() const { return base + Shape::kStages * Shape::kStageBytes; }
  __device__ __forceinline__ uint32_t Full(uint32_t s) const { return Out() + Shape::kOutBytes + s * 8; }
  __device__ __forceinline__ uint32_t Empty(uint32_t s) const { return Full(s) + Shape::kStages * 8; }
  __device__ __forceinline__ void Init() const {
    for (int s = 0; s < Shape::kStages; ++s) {
      InitBarrier(Full(s), 1);
      InitBarrier(Empty(s), Shape::kCluster * kDenseConsumers / 32);
    }
    FenceBarrierInit();
  }
};

// Where a ring's user is: the stage and the parity of its round.
template <typename Shape>
struct DenseCursor {
  uint32_t stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void Advance() {
    if (++stage == Shape::kStages) stage = 0, parity ^= 1;
  }
};

// The producer's copies; one thread.
template <typename Shape>
struct DenseProducer {
  const DenseArgs& a;
  const DenseRing<Shape>& ring;
  int32_t rank;
  uint64_t weight_policy, x_policy;

  __device__ __forceinline__ DenseProducer(const DenseArgs& args, const DenseRing<Shape>& r, int32_t in_cluster)
      : a(args), ring(r), rank(in_cluster) {
    weight_policy = a.once ? EvictFirstPolicy() : NormalPolicy();
    x_policy = a.once ? EvictLastPolicy() : NormalPolicy();
  }
  __device__ __forceinline__ void Weight(uint32_t s, int32_t tile, int32_t step) const {
    constexpr int kGroups = Shape::kRows / 16;
    ArriveExpecting(ring.Full(s), Shape::kStageBytes);
    if constexpr (Shape::kShareWeight && Shape::kCluster > 1) {
      constexpr int kShare = kGroups / Shape::kCluster;
      CopyBox4To((1 << Shape::kCluster) - 1, ring.Stage(s) + rank * (Shape::kWeightBytes / Shape::kCluster), &a.weight,
                 ring.Full(s), step * kDenseDepth, 0, 0, tile * kGroups + rank * kShare, weight_policy);
    } else {
      CopyBox4(ring.Stage(s), &a.weight, ring.Full(s), step * kDenseDepth, 0, 0, tile * kGroups, weight_policy);
    }
  }
  __device__ __forceinline__ void Input(uint32_t s, int32_t token0, int32_t step) const {
    const uint32_t to = ring.Stage(s) + Shape::kWeightBytes;
    if constexpr (!Shape::kShareWeight && Shape::kCluster > 1) {
      constexpr int kShare = Shape::kTokens / Shape::kCluster;
      CopyBox2To((1 << Shape::kCluster) - 1, to + rank * kShare * kDenseDepth * 2, &a.x, ring.Full(s),
                 step * kDenseDepth, token0 + rank * kShare, x_policy);
    } else {
      CopyBox2(to, &a.x, ring.Full(s), step * kDenseDepth, token0, x_policy);
    }
  }
  // The steps of the first piece that fit the ring: their weights do not wait for the kernel before.
  __device__ __forceinline__ void Run(DenseWork work) const {
    DenseCursor<Shape> at;
    DensePiece p;
    bool more = work.Next(p);
    DenseBlock place = more ? BlockOf<Shape>(a, p.tile, rank) : DenseBlock{};
    const int32_t ahead = more ? min(p.end - p.begin, Shape::kStages) : 0;
    for (int32_t i = 0; i < ahead; ++i) Weight(i, place.weight_tile, p.begin + i);
    WaitForPrevious();
    for (int32_t i = 0; i < ahead; ++i, at.Advance()) Input(i, place.token0, p.begin + i);
    p.begin += ahead;
    while (more) {
      for (int32_t step = p.begin; step < p.end; ++step, at.Advance()) {
        WaitFor(ring.Empty(at.stage), at.parity ^ 1);
        Weight(at.stage, place.weight_tile, step);
        Input(at.stage, place.token0, step);
      }
      more = work.Next(p);
      if (more) place = BlockOf<Shape>(a, p.tile, rank);
    }
  }
};

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace fastllm::cuda
