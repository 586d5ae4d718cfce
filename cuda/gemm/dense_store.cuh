// What happens to the sums of the kernel of dense_linear: those of a part of k go to the block that has the tile, whole
// ones through shared memory to out.
#pragma once

#include "cuda/common/mma.cuh"
#include "cuda/common/tma.cuh"
#include "cuda/gemm/dense_shape.cuh"

namespace fastllm::cuda {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// One of the two consumer warpgroups of a block.
struct DenseGroup {
  int32_t index;   // 0 or 1
  int32_t thread;  // in the group
  uint32_t out;    // its two buffers, shared-memory address

  __device__ __forceinline__ void Sync() const { SyncNamed(1 + index, 128); }
};

__device__ __forceinline__ uint32_t LoadAcquire(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];\n" : "=r"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ void StoreRelease(uint32_t* p, uint32_t v) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;\n" ::"l"(p), "r"(v) : "memory");
}

template <typename Shape>
__device__ __forceinline__ float4* PartialOf(const DenseArgs& a, const DenseGroup& g, int32_t block) {
  return a.partial + (int64_t{block} * 2 + g.index) * (Shape::kSums / 4 * 128) + g.thread;
}

// Leaves the group's sums of a piece for the block that has the tile.
template <typename Shape>
__device__ __forceinline__ void LeavePartial(const DenseArgs& a, const DenseGroup& g,
                                             const float (&acc)[Shape::kAtoms][Shape::kTokens / 2]) {
  float4* to = PartialOf<Shape>(a, g, blockIdx.x);
#pragma unroll
  for (int i = 0; i < Shape::kSums / 4; ++i) {
    const float* v = &acc[i / (Shape::kTokens / 8)][i % (Shape::kTokens / 8) * 4];
    __stcg(to + i * 128, make_float4(v[0], v[1], v[2], v[3]));
  }
  __threadfence();
  g.Sync();
  if (g.thread == 0) StoreRelease(a.flags + blockIdx.x * 2 + g.index, 1);
  __syncwarp();
}

// Adds the pieces of the tile that other clusters did, [p.end, steps) of it, in their order, and makes their flags
// ready for the next launch.
template <typename Shape>
__device__ __forceinline__ void AddOthers(const DenseArgs& a, const DenseGroup& g, const DensePiece& p,
                                          float (&acc)[Shape::kAtoms][Shape::kTokens / 2]) {
  const int32_t cluster = static_cast<int32_t>(blockIdx.x) / Shape::kCluster, rank = blockIdx.x % Shape::kCluster;
  const int32_t last = LastOfTile(a.tiles, p, cluster);
  if (g.thread < cluster - last) {
    uint32_t* flag = a.flags + ((last + g.thread) * Shape::kCluster + rank) * 2 + g.index;
    while (LoadAcquire(flag) == 0) {
    }
    *flag = 0;
  }
  __syncwarp();
  g.Sync();
  for (int32_t c = cluster - 1; c >= last; --c) {
    const float4* from = PartialOf<Shape>(a, g, c * Shape::kCluster + rank);
#pragma unroll
    for (int i = 0; i < Shape::kSums / 4; ++i) {
      const float4 s = __ldcg(from + i * 128);
      float* v = &acc[i / (Shape::kTokens / 8)][i % (Shape::kTokens / 8) * 4];
      v[0] += s.x, v[1] += s.y, v[2] += s.z, v[3] += s.w;
    }
  }
}

__device__ __forceinline__ float SiluMul(float gate, float up) { return __fdividef(gate, 1.0f + __expf(-gate)) * up; }

// The warp's part of kChunk tokens, from token `first` of the tile on, to shared memory [token][column of the group].
template <typename Shape>
__device__ __forceinline__ void ChunkToShared(uint32_t to, int32_t first,
                                              const float (&acc)[Shape::kAtoms][Shape::kTokens / 2]) {
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  constexpr int kStep = Shape::kGated ? 4 : 2;  // blocks of 8 tokens that an instruction stores
#pragma unroll
  for (int atom = 0; atom < Shape::kAtoms; ++atom) {
#pragma unroll
    for (int j = 0; j < Shape::kChunk / 8; j += kStep) {
      uint32_t r[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (Shape::kGated) {
          const float* v = &acc[atom][(first / 8 + j + i) * 4];
          r[i] = PackTwo<bf16>(SiluMul(v[0], v[2]), SiluMul(v[1], v[3]));
        } else {
          const float* v = &acc[atom][(first / 8 + j + i / 2) * 4 + i % 2 * 2];
          r[i] = PackTwo<bf16>(v[0], v[1]);
        }
      }
      const int32_t token = (j + (Shape::kGated ? lane / 8 : lane / 16)) * 8 + lane % 8;
      const int32_t column = Shape::kGated ? atom * 32 + warp * 8 : atom * 64 + warp * 16 + lane / 8 % 2 * 8;
      StoreTransposed4(to + token * Shape::kChunkStride + column * 2, r);
    }
  }
}

template <typename Shape>
__device__ __forceinline__ void AddBias(const DenseArgs& a, int32_t column0,
                                        float (&acc)[Shape::kAtoms][Shape::kTokens / 2]) {
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
#pragma unroll
  for (int atom = 0; atom < Shape::kAtoms; ++atom) {
    const int32_t column = column0 + atom * 64 + warp * 16 + lane / 4;
    const float low = column < a.n ? ToFloat(a.bias[column]) : 0.0f;
    const float high = column + 8 < a.n ? ToFloat(a.bias[column + 8]) : 0.0f;
#pragma unroll
    for (int j = 0; j < Shape::kTokens / 8; ++j) {
      acc[atom][j * 4] += low, acc[atom][j * 4 + 1] += low;
      acc[atom][j * 4 + 2] += high, acc[atom][j * 4 + 3] += high;
    }
  }
}

// From the group's buffer, [tokens][kGroupColumns], to out.
template <typename Shape>
__device__ __forceinline__ void BufferToOut(const DenseArgs& a, const DenseGroup& g, uint32_t buffer, int32_t tokens,
                                            int32_t token0, int32_t column0) {
  constexpr int kPacks = Shape::kGroupColumns / 8;  // of a token
  for (int i = g.thread; i < tokens * kPacks; i += 128) {
    const int32_t t = i / kPacks, token = token0 + t, column = column0 + i % kPacks * 8;
    if (token >= a.m || column >= a.n) continue;
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(buffer + t * Shape::kChunkStride + i % kPacks * 16)
                 : "memory");
    *reinterpret_cast<uint4*>(a.out + int64_t{token} * a.n + column) = v;
  }
}

// The group's part of a tile to out.
template <typename Shape>
__device__ __forceinline__ void StoreTile(const DenseArgs& a, const DenseGroup& g, const DenseBlock& place,
                                          float (&acc)[Shape::kAtoms][Shape::kTokens / 2]) {
  const int32_t column0 = place.weight_tile * Shape::kColumns + g.index * Shape::kGroupColumns;
  if constexpr (!Shape::kGated) {
    if (a.bias != nullptr) AddBias<Shape>(a, column0, acc);
  }
#pragma unroll
  for (int first = 0; first < Shape::kTokens; first += Shape::kChunk) {
    const uint32_t buffer = g.out + first / Shape::kChunk % 2 * Shape::kChunkBytes;
    ChunkToShared<Shape>(buffer, first, acc);
    g.Sync();
    BufferToOut<Shape>(a, g, buffer, Shape::kChunk, place.token0 + first, column0);
  }
  g.Sync();  // the first buffer may be written again
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace fastllm::cuda
