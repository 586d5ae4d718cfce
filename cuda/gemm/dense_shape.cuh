// What the kernel of dense_linear (dense_stream.cuh) is made for and what it is given.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/common/types.cuh"
#include "cuda/gemm/dense_cut.h"

namespace fastllm::cuda {

inline constexpr int kDenseDepth = 64;  // elements of k of a step
inline constexpr int kDenseConsumers = 256;
inline constexpr int kDenseThreads = kDenseConsumers + 128;  // and a warpgroup that fills the ring
inline constexpr int kDenseRing = 227 * 1024 - 1024;         // bytes of shared memory, less the alignment

// An instance. A tile is 128 kAtoms rows of the weight and kTokens rows of x. The blocks of a cluster work side by side
// on neighbouring tiles and share the operand that these have in common: x (tiles of other weight rows) or the weight.
template <int kAtomsOf, int kTokensOf, int kClusterOf, bool kShareWeightOf, bool kGatedOf>
struct DenseShape {
  static constexpr int kAtoms = kAtomsOf;  // of 64 rows of the weight, for each of two warpgroups
  static constexpr int kTokens = kTokensOf;
  static constexpr int kCluster = kClusterOf;
  static constexpr bool kShareWeight = kShareWeightOf;
  static constexpr bool kGated = kGatedOf;  // silu(gate) * up of pairs of weight rows

  static constexpr int kRows = 128 * kAtoms;
  static constexpr int kColumns = kGated ? kRows / 2 : kRows;  // of out
  static constexpr int kWeightBytes = kRows * kDenseDepth * 2;
  static constexpr int kStageBytes = kWeightBytes + kTokens * kDenseDepth * 2;
  static constexpr int kSums = kAtoms * kTokens / 2;  // of a thread
  // The results of a warpgroup go out kChunk tokens at a time, through one of two buffers.
  static constexpr int kGroupColumns = kColumns / 2;
  static constexpr int kChunk = kGroupColumns > 64 ? 16 : 32;
  static constexpr int kChunkStride = kGroupColumns * 2 + 16;  // bytes of a token's columns, and a shift of the banks
  static constexpr int kChunkBytes = kChunk * kChunkStride;
  static constexpr int kOutBytes = 4 * kChunkBytes;
  static constexpr int kBarrierBytes = 256;
  static constexpr int kFit = (kDenseRing - kOutBytes - kBarrierBytes) / kStageBytes;
  static constexpr int kStages = kFit < 12 ? kFit : 12;
  static constexpr int kSharedBytes = kStages * kStageBytes + kOutBytes + kBarrierBytes + 1024;
  static_assert(kAtoms * kTokens <= 256 && kTokens % (8 * kCluster) == 0 && kTokens % kChunk == 0 && kStages >= 3);
  static_assert(2 * kStages * 8 <= kBarrierBytes);
};

struct DenseArgs {
  CUtensorMap weight;  // boxes of (rows / 16) x 2 x 8 rows: with kGated the 2 are gate and up
  CUtensorMap x;
  bf16* out;         // [m, n]
  const bf16* bias;  // [n] or null
  float4* partial;   // one tile of sums for each block
  uint32_t* flags;   // [blocks][2], zero between launches
  int32_t m;
  int32_t n;
  DenseTiles tiles;  // of clusters
  bool once;         // the weight is read once
};

// A block's part of a tile: its tile of the weight, and its first token.
struct DenseBlock {
  int32_t weight_tile;
  int32_t token0;
};

template <typename Shape>
__device__ __forceinline__ DenseBlock BlockOf(const DenseArgs& a, int32_t tile, int32_t rank) {
  const DensePlace p = PlaceOf(a.tiles, tile);
  if constexpr (Shape::kShareWeight) {
    return {p.weight, (p.token * Shape::kCluster + rank) * Shape::kTokens};
  } else {
    return {p.weight * Shape::kCluster + rank, p.token * Shape::kTokens};
  }
}

}  // namespace fastllm::cuda
