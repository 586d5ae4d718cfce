// dense_linear on Hopper for 17 to 64 rows: bound by reading the weight once.
//
// A block has 128 rows of the weight, as the wide operand of the matrix units (a warpgroup for each 64), and all rows
// of x beside them; a warp of its own streams both through a ring in shared memory. The blocks of a cluster share k and
// add up their sums at the end, in their order, each for a share of the tokens. No kernel writes weights, so a block
// fills its ring with them before it waits for the kernel before; the next kernel may start when the last copies are on
// their way, and not before, as its own would only come in between.
#pragma once

#include "cuda/common/tma_fetch.cuh"
#include "cuda/common/wgmma.cuh"
#include "cuda/gemm/few_finish.cuh"

namespace fastllm::cuda {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// The ring of stages, as shared-memory addresses, and the block's steps of k.
struct FewRing {
  uint32_t base;
  uint32_t full;   // barriers of the stages
  uint32_t empty;  // likewise
  int32_t begin;
  int32_t end;
};

// The producer's copies; one thread.
template <typename Shape>
struct FewProducer {
  const FewArgs& a;
  const FewRing& ring;
  uint64_t once = EvictFirstPolicy(), keep = EvictLastPolicy();

  __device__ __forceinline__ void Weight(int32_t i, uint32_t s) const {
    ArriveExpecting(ring.full + s * 8, Shape::kStageBytes);
    CopyBox4(ring.base + s * Shape::kStageBytes, &a.weight, ring.full + s * 8, (ring.begin + i) * kFewDepth, 0, 0,
             static_cast<int32_t>(blockIdx.y) * (Shape::kRows / 16), once);
  }
  __device__ __forceinline__ void Input(int32_t i, uint32_t s) const {
    CopyBox2(ring.base + s * Shape::kStageBytes + Shape::kWeightBytes, &a.x, ring.full + s * 8,
             (ring.begin + i) * kFewDepth, 0, keep);
  }
  __device__ __forceinline__ void Run() const {
    const int32_t steps = ring.end - ring.begin, ahead = min(steps, Shape::kStages);
    for (int32_t i = 0; i < ahead; ++i) Weight(i, i);
    for (int32_t i = ahead; i < min(steps, ahead + a.ahead); ++i) {
      FetchBox4(&a.weight, (ring.begin + i) * kFewDepth, 0, 0, static_cast<int32_t>(blockIdx.y) * (Shape::kRows / 16));
    }
    WaitForPrevious();
    for (int32_t i = 0; i < ahead; ++i) Input(i, i);
    for (int32_t i = ahead; i < steps; ++i) {
      const uint32_t s = i % Shape::kStages;
      WaitFor(ring.empty + s * 8, (i / Shape::kStages - 1) & 1);
      Weight(i, s);
      Input(i, s);
    }
    AllowNext();  // the last bytes are on their way
  }
};

// acc = the sums of this thread's elements over the block's steps.
template <typename Shape>
__device__ __forceinline__ void ConsumeFew(const FewRing& ring, float (&acc)[Shape::kAtoms][Shape::kTokens / 2]) {
  const int32_t steps = ring.end - ring.begin, group = threadIdx.x / 128;
  uint32_t before = 0;
  for (int32_t i = 0; i < steps; ++i) {
    const uint32_t s = i % Shape::kStages, at = ring.base + s * Shape::kStageBytes;
    WaitFor(ring.full + s * 8, (i / Shape::kStages) & 1);
    const uint64_t w = SwizzledOperand<128>(at + group * (Shape::kWeightBytes / Shape::kGroups), 1024, 16);
    const uint64_t x = SwizzledOperand<128>(at + Shape::kWeightBytes, 1024, 16);
    WarpgroupFence();
#pragma unroll
    for (int k = 0; k < kFewDepth / 16; ++k) {
#pragma unroll
      for (int atom = 0; atom < Shape::kAtoms; ++atom) {
        MultiplyShared<bf16>(acc[atom], OperandAt(w, atom * 64 * kFewDepth * 2 + k * 32), OperandAt(x, k * 32),
                             i > 0 || k > 0);
      }
    }
    WarpgroupCommit();
    if (i > 0) {
      WarpgroupWait<1>();
      if (threadIdx.x % 32 == 0) ArriveAt(ring.empty + before * 8);
    }
    before = s;
  }
  WarpgroupWait<0>();
#pragma unroll
  for (int atom = 0; atom < Shape::kAtoms; ++atom) Pin(acc[atom]);
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

// Grid: (blocks of the cluster that shares k, tiles of the weight).
template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBound) FewStreamKernel(const __grid_constant__ FewArgs a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char dynamic[];
  __shared__ uint64_t barriers[2 * Shape::kStages];
  const int32_t steps = (a.k + kFewDepth - 1) / kFewDepth, splits = gridDim.x, split = blockIdx.x;
  FewRing ring;
  ring.base = (SharedAddress(dynamic) + 1023) / 1024 * 1024;
  ring.full = SharedAddress(barriers);
  ring.empty = ring.full + Shape::kStages * 8;
  ring.begin = steps * split / splits;
  ring.end = steps * (split + 1) / splits;
  if (threadIdx.x == 0) {
    for (int s = 0; s < Shape::kStages; ++s) {
      InitBarrier(ring.full + s * 8, 1);
      InitBarrier(ring.empty + s * 8, Shape::kConsumers / 32);
    }
    FenceBarrierInit();
  }
  __syncthreads();
  if (threadIdx.x >= Shape::kConsumers) {
    if (threadIdx.x == Shape::kConsumers) FewProducer<Shape>{a, ring}.Run();
    __syncwarp();
    WaitForPrevious();
    splits > 1 ? SyncCluster() : __syncthreads();
  } else {
    WaitForPrevious();
    float acc[Shape::kAtoms][Shape::kTokens / 2];
    ConsumeFew<Shape>(ring, acc);
    SyncNamed(1, Shape::kConsumers);  // all are done with the ring
    LeaveFewSums<Shape>(ring.base, acc);
    splits > 1 ? SyncCluster() : __syncthreads();
    FinishFew<Shape>(a, ring.base);
  }
  if (splits > 1) SyncCluster();  // nobody ends while another reads its sums
#else
  __trap();  // the launcher never picks it on other devices
#endif
}

}  // namespace fastllm::cuda
