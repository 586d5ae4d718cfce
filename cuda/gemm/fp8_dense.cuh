// dense_fp8_linear (contract/fp8.h) on Hopper: products of 17 to many thousand rows in 8-bit floats.
//
// The kernel of dense_linear (dense_stream.cuh) with other products and a scale for each row and column: a row of a
// stage is 128 bytes in both, so the ring, what fills it, the cut along k and the way out are shared; the copy engine
// takes pairs of bytes for 16-bit elements. The matrix units add up with few bits: a whole piece of k is left to them,
// as cuBLASLt does in its fast mode. Where a thread has registers for it (up to 64 sums) kPromote has them add 128
// products, and float32 the rest; it costs time (bench/RESULTS.md), so no launcher takes it.
#pragma once

#include "cuda/common/cluster.cuh"
#include "cuda/common/wgmma.cuh"
#include "cuda/common/wgmma_fp8.cuh"
#include "cuda/gemm/dense_stream.cuh"

namespace fastllm::cuda {

inline constexpr int kFp8DenseDepth = 2 * kDenseDepth;  // elements of k of a step

struct Fp8DenseArgs {
  DenseArgs dense;            // k of the maps in pairs of bytes
  const float* x_scale;       // [m]
  const float* weight_scale;  // [n], gated [2 n]
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// sums (+)= the products of one stage. The caller waits.
template <typename Shape>
__device__ __forceinline__ void MultiplyFp8Stage(const DenseRing<Shape>& ring, uint32_t stage, int32_t group,
                                                 float (&sums)[Shape::kAtoms][Shape::kTokens / 2], bool add) {
  const uint32_t base = ring.Stage(stage);
  const uint64_t w = SwizzledOperand<128>(base + group * (Shape::kWeightBytes / 2), 1024, 16);
  const uint64_t x = SwizzledOperand<128>(base + Shape::kWeightBytes, 1024, 16);
  WarpgroupFence();
#pragma unroll
  for (int k = 0; k < kFp8DenseDepth / 32; ++k) {
#pragma unroll
    for (int atom = 0; atom < Shape::kAtoms; ++atom) {
      MultiplyFp8(sums[atom], OperandAt(w, atom * 64 * kFp8DenseDepth + k * 32), OperandAt(x, k * 32), add || k > 0);
    }
  }
  WarpgroupCommit();
}

// acc = the sums of a piece, each 128 products of it added in float32.
template <typename Shape>
__device__ __forceinline__ void ConsumeFp8Promoting(const DenseRing<Shape>& ring, DenseCursor<Shape>& at, int32_t group,
                                                    int32_t steps, float (&acc)[Shape::kAtoms][Shape::kTokens / 2]) {
#pragma unroll
  for (int i = 0; i < Shape::kSums; ++i) acc[i / (Shape::kTokens / 2)][i % (Shape::kTokens / 2)] = 0.0f;
  for (int32_t i = 0; i < steps; ++i, at.Advance()) {
    float sums[Shape::kAtoms][Shape::kTokens / 2];
    WaitFor(ring.Full(at.stage), at.parity);
    MultiplyFp8Stage<Shape>(ring, at.stage, group, sums, false);
    WarpgroupWait<0>();
#pragma unroll
    for (int atom = 0; atom < Shape::kAtoms; ++atom) Pin(sums[atom]);
    ReleaseStage<Shape>(ring, at.stage);
#pragma unroll
    for (int atom = 0; atom < Shape::kAtoms; ++atom) {
#pragma unroll
      for (int j = 0; j < Shape::kTokens / 2; ++j) acc[atom][j] += sums[atom][j];
    }
  }
}

// acc = the sums of a piece, added in the matrix units.
template <typename Shape>
__device__ __forceinline__ void ConsumeFp8Piece(const DenseRing<Shape>& ring, DenseCursor<Shape>& at, int32_t group,
                                                int32_t steps, float (&acc)[Shape::kAtoms][Shape::kTokens / 2]) {
  uint32_t before = 0;
  for (int32_t i = 0; i < steps; ++i, at.Advance()) {
    WaitFor(ring.Full(at.stage), at.parity);
    MultiplyFp8Stage<Shape>(ring, at.stage, group, acc, i > 0);
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

// The sums times the scales of their rows and columns.
template <typename Shape>
__device__ __forceinline__ void ScaleFp8(const Fp8DenseArgs& a, const DenseGroup& g, const DenseBlock& place,
                                         float (&acc)[Shape::kAtoms][Shape::kTokens / 2]) {
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, n = a.dense.n;
  const int32_t column0 = place.weight_tile * Shape::kColumns + g.index * Shape::kGroupColumns;
  const auto weight_scale = [&](int32_t column, int32_t from) {
    return column < n ? a.weight_scale[from + column] : 0.0f;
  };
  float low[Shape::kAtoms], high[Shape::kAtoms];  // of the thread's rows of the weight, in accumulators' order
#pragma unroll
  for (int atom = 0; atom < Shape::kAtoms; ++atom) {
    if constexpr (Shape::kGated) {
      const int32_t column = column0 + atom * 32 + warp * 8 + lane / 4;
      low[atom] = weight_scale(column, 0), high[atom] = weight_scale(column, n);
    } else {
      const int32_t column = column0 + atom * 64 + warp * 16 + lane / 4;
      low[atom] = weight_scale(column, 0), high[atom] = weight_scale(column + 8, 0);
    }
  }
#pragma unroll
  for (int j = 0; j < Shape::kTokens / 8; ++j) {
    const int32_t token = place.token0 + j * 8 + lane % 4 * 2;
    const float even = token < a.dense.m ? a.x_scale[token] : 0.0f;
    const float odd = token + 1 < a.dense.m ? a.x_scale[token + 1] : 0.0f;
#pragma unroll
    for (int atom = 0; atom < Shape::kAtoms; ++atom) {
      float* v = &acc[atom][j * 4];
      v[0] *= even * low[atom], v[1] *= odd * low[atom];
      v[2] *= even * high[atom], v[3] *= odd * high[atom];
    }
  }
}

template <typename Shape, bool kPromote>
__device__ __forceinline__ void ConsumeFp8Dense(const Fp8DenseArgs& a, const DenseRing<Shape>& ring, DenseWork work,
                                                int32_t rank) {
  const int32_t index = threadIdx.x / 128;
  const DenseGroup g{index, static_cast<int32_t>(threadIdx.x) % 128, ring.Out() + index * 2 * Shape::kChunkBytes};
  DenseCursor<Shape> at;
  DensePiece p;
  while (work.Next(p)) {
    float acc[Shape::kAtoms][Shape::kTokens / 2];
    if constexpr (kPromote) {
      ConsumeFp8Promoting<Shape>(ring, at, index, p.end - p.begin, acc);
    } else {
      ConsumeFp8Piece<Shape>(ring, at, index, p.end - p.begin, acc);
    }
    if (p.begin > 0) {
      LeavePartial<Shape>(a.dense, g, acc);
      continue;
    }
    if (p.end < a.dense.tiles.steps) AddOthers<Shape>(a.dense, g, p, acc);
    const DenseBlock place = BlockOf<Shape>(a.dense, p.tile, rank);
    ScaleFp8<Shape>(a, g, place, acc);
    StoreTile<Shape>(a.dense, g, place, acc);
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

// Grid: blocks in clusters of kCluster, at most one for each multiprocessor.
template <typename Shape, bool kPromote>
__global__ void __launch_bounds__(kDenseThreads, 1) Fp8DenseKernel(const __grid_constant__ Fp8DenseArgs a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char dynamic[];
  const DenseRing<Shape> ring{(SharedAddress(dynamic) + 1023) / 1024 * 1024};
  const int32_t rank = static_cast<int32_t>(blockIdx.x) % Shape::kCluster;
  const DenseWork work(a.dense.tiles, static_cast<int32_t>(blockIdx.x) / Shape::kCluster);
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
      PrefetchMap(&a.dense.weight);
      PrefetchMap(&a.dense.x);
      DenseProducer<Shape>(a.dense, ring, rank).Run(work);
    }
    __syncwarp();
    WaitForPrevious();
  } else {
    TakeRegisters<232>();
    WaitForPrevious();
    ConsumeFp8Dense<Shape, kPromote>(a, ring, work, rank);
  }
  if constexpr (Shape::kCluster > 1) SyncCluster();  // nobody ends while another copies into its memory
#else
  __trap();  // the launcher never picks it on other devices
#endif
}

}  // namespace fastllm::cuda
