// dense_linear on Hopper: products of 17 to many thousand rows in bfloat16.
//
// The weight is the left operand of the matrix units (its rows are the result's columns, and the result is transposed
// on its way out), so that few rows of x fill the right one. One block a multiprocessor stays for the whole launch: one
// warp streams both operands through a ring in shared memory, two warpgroups multiply, 64 or 128 rows of the weight
// each. What does not fill all blocks evenly is cut along k (DenseWork); parts are added in their order: the same bits
// on every run. gate and up lie eight rows of each in turn within a tile (the tensor map does that), so a thread has
// both values of a pair. The first stages of the weight are on their way before the kernel waits for the one before it,
// as no kernel writes weights.
#pragma once

#include "cuda/common/cluster.cuh"
#include "cuda/common/wgmma.cuh"
#include "cuda/gemm/dense_produce.cuh"
#include "cuda/gemm/dense_store.cuh"

namespace fastllm::cuda {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Says that the calling warp has read a stage, to all blocks that write into it.
template <typename Shape>
__device__ __forceinline__ void ReleaseStage(const DenseRing<Shape>& ring, uint32_t s) {
  const int32_t lane = threadIdx.x % 32;
  if constexpr (Shape::kCluster > 1) {
    if (lane < Shape::kCluster) ArriveInCluster(SharedOf(ring.Empty(s), lane));
  } else {
    if (lane == 0) ArriveAt(ring.Empty(s));
  }
}

// acc = the sums of a piece.
template <typename Shape>
__device__ __forceinline__ void ConsumePiece(const DenseRing<Shape>& ring, DenseCursor<Shape>& at, int32_t group,
                                             int32_t steps, float (&acc)[Shape::kAtoms][Shape::kTokens / 2]) {
  uint32_t before = 0;
  for (int32_t i = 0; i < steps; ++i, at.Advance()) {
    WaitFor(ring.Full(at.stage), at.parity);
    const uint32_t base = ring.Stage(at.stage);
    const uint64_t w = SwizzledOperand<128>(base + group * (Shape::kWeightBytes / 2), 1024, 16);
    const uint64_t x = SwizzledOperand<128>(base + Shape::kWeightBytes, 1024, 16);
    WarpgroupFence();
#pragma unroll
    for (int k = 0; k < kDenseDepth / 16; ++k) {
#pragma unroll
      for (int atom = 0; atom < Shape::kAtoms; ++atom) {
        MultiplyShared<bf16>(acc[atom], OperandAt(w, atom * 64 * kDenseDepth * 2 + k * 32), OperandAt(x, k * 32),
                             i > 0 || k > 0);
      }
    }
    WarpgroupCommit();
    if (i > 0) {
      WarpgroupWait<1>();
      ReleaseStage<Shape>(ring, before);
    }
    before = at.stage;
  }
  WarpgroupWait<0>();
#pragma unroll
  for (int atom = 0; atom < Shape::kAtoms; ++atom) Pin(acc[atom]);
  if (steps > 0) ReleaseStage<Shape>(ring, before);
}

template <typename Shape>
__device__ __forceinline__ void ConsumeDense(const DenseArgs& a, const DenseRing<Shape>& ring, DenseWork work,
                                             int32_t rank) {
  const int32_t index = threadIdx.x / 128;
  const DenseGroup g{index, static_cast<int32_t>(threadIdx.x) % 128, ring.Out() + index * 2 * Shape::kChunkBytes};
  DenseCursor<Shape> at;
  DensePiece p;
  while (work.Next(p)) {
    float acc[Shape::kAtoms][Shape::kTokens / 2];
    ConsumePiece<Shape>(ring, at, index, p.end - p.begin, acc);
    if (p.begin > 0) {
      LeavePartial<Shape>(a, g, acc);
      continue;
    }
    if (p.end < a.tiles.steps) AddOthers<Shape>(a, g, p, acc);
    StoreTile<Shape>(a, g, BlockOf<Shape>(a, p.tile, rank), acc);
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

// Grid: blocks in clusters of kCluster, at most one for each multiprocessor.
template <typename Shape>
__global__ void __launch_bounds__(kDenseThreads, 1) DenseKernel(const __grid_constant__ DenseArgs a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char dynamic[];
  const DenseRing<Shape> ring{(SharedAddress(dynamic) + 1023) / 1024 * 1024};
  const int32_t rank = static_cast<int32_t>(blockIdx.x) % Shape::kCluster;
  const DenseWork work(a.tiles, static_cast<int32_t>(blockIdx.x) / Shape::kCluster);
  if (threadIdx.x == 0) ring.Init();
  if constexpr (Shape::kCluster > 1) {
    SyncCluster();
  } else {
    __syncthreads();
  }
  AllowNext();
  if (threadIdx.x >= kDenseConsumers) {
    GiveRegisters<40>();
    if (threadIdx.x == kDenseConsumers) {
      PrefetchMap(&a.weight);
      PrefetchMap(&a.x);
      DenseProducer<Shape>(a, ring, rank).Run(work);
    }
    __syncwarp();
    WaitForPrevious();
  } else {
    TakeRegisters<232>();
    WaitForPrevious();
    ConsumeDense<Shape>(a, ring, work, rank);
  }
  if constexpr (Shape::kCluster > 1) SyncCluster();  // nobody ends while another copies into its memory
#else
  __trap();  // the launcher never picks it on other devices
#endif
}

}  // namespace fastllm::cuda
