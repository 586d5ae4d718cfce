// fp8_linear (contract/fp8.h) for few rows on Hopper: bound by reading the weight once, and built for that.
//
// A block has 128 rows of the weight, as the wide operand of the matrix units (two warpgroups of 64), and up to kTokens
// rows of x beside them; a warp of its own streams both through a ring in shared memory. The blocks of a cluster share
// k and add up their sums at the end, in their order, each for a share of the tokens. How k is shared depends on n and
// k alone, so up to 64 rows a row has the same bits whatever the rows beside it. The matrix units add up 128 products
// at a time, with few bits, and what they leave is added in float32. The first stages of the weight are on their way
// before the kernel waits for the one before it, as no kernel writes weights.
#pragma once

#include "cuda/common/wgmma.cuh"
#include "cuda/common/wgmma_fp8.cuh"
#include "cuda/gemm/fp8_produce.cuh"

namespace fastllm::cuda {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// acc = the sums of this thread's elements over the block's steps.
template <typename Shape>
__device__ __forceinline__ void ConsumeFp8(const Fp8Ring& ring, float (&acc)[Shape::kTokens / 2]) {
  constexpr int kTokens = Shape::kTokens;
  const int32_t steps = ring.end - ring.begin, warpgroup = threadIdx.x / 128;
#pragma unroll
  for (int i = 0; i < kTokens / 2; ++i) acc[i] = 0.0f;
  for (int32_t i = 0; i < steps; ++i) {
    const uint32_t s = i % Shape::kStages, at = ring.base + s * Shape::kStageBytes;
    WaitFor(ring.full + s * 8, (i / Shape::kStages) & 1);
    const uint64_t w = SwizzledOperand<128>(at + warpgroup * (Shape::kWeightBytes / 2), 1024, 16);
    const uint64_t x = SwizzledOperand<128>(at + Shape::kWeightBytes, 1024, 16);
    float sums[kTokens / 2];
    WarpgroupFence();
#pragma unroll
    for (int k = 0; k < kFp8Depth / 32; ++k) MultiplyFp8(sums, OperandAt(w, k * 32), OperandAt(x, k * 32), k > 0);
    WarpgroupCommit();
    WarpgroupWait<0>();
    Pin(sums);
    if (threadIdx.x % 32 == 0) ArriveAt(ring.empty + s * 8);
#pragma unroll
    for (int j = 0; j < kTokens / 2; ++j) acc[j] += sums[j];
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

// Grid: (blocks of the cluster that shares k, tiles of columns * tiles of tokens, the latter fastest).
template <typename Shape>
__global__ void __launch_bounds__(kFp8Threads, Shape::kBlocks)
    Fp8StreamKernel(const __grid_constant__ Fp8StreamArgs a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr int kTokens = Shape::kTokens;
  extern __shared__ char dynamic[];
  __shared__ uint64_t barriers[2 * Shape::kStages];
  const int warp = threadIdx.x / 32;
  const int32_t steps = (a.k + kFp8Depth - 1) / kFp8Depth, token_tiles = (a.m + kTokens - 1) / kTokens;
  Fp8Part part;
  part.splits = gridDim.x;
  part.split = blockIdx.x;
  part.row0 = blockIdx.y / token_tiles * kFp8Columns;
  part.token0 = blockIdx.y % token_tiles * kTokens;
  part.tokens = min(a.m - part.token0, kTokens);
  Fp8Ring ring;
  ring.base = (SharedAddress(dynamic) + 1023) / 1024 * 1024;
  ring.full = SharedAddress(barriers);
  ring.empty = ring.full + Shape::kStages * 8;
  ring.begin = steps * part.split / part.splits;
  ring.end = steps * (part.split + 1) / part.splits;
  if (threadIdx.x == 0) {
    for (int s = 0; s < Shape::kStages; ++s) {
      InitBarrier(ring.full + s * 8, 1);
      InitBarrier(ring.empty + s * 8, kFp8Consumers / 32);
    }
    FenceBarrierInit();
  }
  __syncthreads();
  const Fp8Producer<Shape> producer{a, ring, part};
  const bool produces = threadIdx.x == kFp8Consumers;
  if (produces) producer.Begin();
  __syncwarp();
  if (a.early) AllowNext();
  if (warp == kFp8Consumers / 32) {
    if (produces) producer.Finish();
    __syncwarp();
    WaitForPrevious();
    gridDim.x > 1 ? SyncCluster() : __syncthreads();
  } else {
    const Fp8Outputs columns(a, part);
    WaitForPrevious();
    if (!a.early) AllowNext();
    const int32_t token = FirstFp8Token(part);
    const float scale = token < EndFp8Tokens(part) ? a.x_scale[part.token0 + token] : 0.0f;
    float acc[kTokens / 2];
    ConsumeFp8<Shape>(ring, acc);
    SyncNamed(1, kFp8Consumers);  // both warpgroups are done with the ring
    LeaveFp8Sums<kTokens>(ring.base, acc);
    gridDim.x > 1 ? SyncCluster() : __syncthreads();
    switch (a.type) {
      case ops::DType::kF16: FinishFp8<__half>(a, ring.base, part, columns, scale); break;
      case ops::DType::kBF16: FinishFp8<bf16>(a, ring.base, part, columns, scale); break;
      default: FinishFp8<float>(a, ring.base, part, columns, scale); break;
    }
  }
  if (gridDim.x > 1) SyncCluster();  // nobody ends while another reads its sums
#else
  __trap();  // the launcher never picks it on other devices
#endif
}

}  // namespace fastllm::cuda
