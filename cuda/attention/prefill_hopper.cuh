// The prefill kernel for Hopper: the same work and plan as prefill.cuh, the products on warpgroup matrix instructions.
// Two warpgroups of 64 rows each. While a warpgroup's P V of one tile runs, it computes the softmax of the next tile's
// scores (Shah et al., FlashAttention-3, 2024). K and V come through cp.async, a tile ahead, as pages may be small.
#pragma once

#include "cuda/attention/hopper_tile.cuh"

namespace fastllm::cuda {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Divides by the sums and writes the warp's 16 rows through its part of the query blocks.
template <typename T, int kHeadDim>
__device__ __forceinline__ void WriteBlocks(HopperState<kHeadDim>& st, const PrefillArgs<T>& a,
                                            const PrefillPlace& place, char* shared_q) {
  constexpr int kChunks = kHeadDim / 8;
  const int lane = threadIdx.x & 31;
  const int row0 = (threadIdx.x >> 5) * 16;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    float l = st.l[j];
    l += __shfl_xor_sync(0xffffffffu, l, 1);
    l += __shfl_xor_sync(0xffffffffu, l, 2);
    const float inverse = 1.0f / l;
#pragma unroll
    for (int n = 0; n < kChunks; ++n) {
      *reinterpret_cast<uint32_t*>(shared_q + BlockOffset(row0 + lane / 4 + j * 8, n) + lane % 4 * 4) =
          PackTwo<T>(st.o[4 * n + 2 * j] * inverse, st.o[4 * n + 2 * j + 1] * inverse);
    }
  }
  __syncwarp();
  for (int i = lane; i < 16 * kChunks; i += 32) {
    const int r = row0 + i / kChunks;
    const int32_t row = place.tile.first_row + r;
    if (row >= place.rows) continue;
    const int32_t token = row / a.group;
    const int32_t head = place.kv_head * a.group + row - token * a.group;
    T* to = a.out + (place.token0 + token) * a.out_stride + static_cast<int64_t>(head) * kHeadDim + i % kChunks * 8;
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(shared_q + BlockOffset(r, i % kChunks));
  }
}

// What was copied has arrived, in every thread, for the matrix units.
__device__ __forceinline__ void ArrivedEverywhere() {
  CopyAsyncWait<0>();
  FenceForMatrixUnits();
  __syncthreads();
}

template <typename T, int kHeadDim>
__device__ __forceinline__ void HopperTile(const PrefillArgs<T>& a, const PrefillPlace& place, char* shared) {
  using Shape = HopperShape<kHeadDim>;
  const int32_t* table = a.block_table + static_cast<int64_t>(place.tile.seq) * a.max_blocks;
  const uint32_t q_all = SharedAddress(shared);
  const uint32_t k = q_all + Shape::kQBytes;
  const uint32_t v = k + 2 * Shape::kTileBytes;
  const uint32_t q = q_all + (threadIdx.x >> 7) * 64 * 128;
  const int32_t last_row = min(place.tile.first_row + kPrefillRows, place.rows) - 1;
  const int32_t tiles = place.PositionOf(last_row, a.group) / Shape::kCols + 1;

  HopperState<kHeadDim> st;
#pragma unroll
  for (int i = 0; i < kHeadDim / 2; ++i) st.o[i] = 0.0f;
  st.m[0] = st.m[1] = -INFINITY;
  st.l[0] = st.l[1] = 0.0f;
  float alpha[2];

  LoadQueryBlocks<T, kHeadDim>(a, place, q_all);
  LoadBlocks<T, kHeadDim>(a, place, a.k, table, 0, k);
  CopyAsyncCommit();
  ArrivedEverywhere();
  if (tiles > 1) LoadBlocks<T, kHeadDim>(a, place, a.k, table, 1, k + Shape::kTileBytes);
  LoadBlocks<T, kHeadDim>(a, place, a.v, table, 0, v);
  CopyAsyncCommit();
  WarpgroupFence();
  IssueScores<T>(st, q, k);
  WarpgroupWait<0>();
  Pin(st.s);
  Weigh(st, place, a.group, 0, a.scale_log2, alpha);
  PackWeights<T>(st);
  for (int32_t j = 1; j < tiles; ++j) {
    const uint32_t here = (j & 1) * Shape::kTileBytes;
    const uint32_t other = Shape::kTileBytes - here;
    ArrivedEverywhere();
    if (j + 1 < tiles) LoadBlocks<T, kHeadDim>(a, place, a.k, table, j + 1, k + other);
    LoadBlocks<T, kHeadDim>(a, place, a.v, table, j, v + here);
    CopyAsyncCommit();
    Pin(st.s);
    Pin(st.o);
    WarpgroupFence();
    IssueScores<T>(st, q, k + here);
    IssueValues<T>(st, v + other);
    WarpgroupWait<1>();
    Pin(st.s);
    Weigh(st, place, a.group, j * Shape::kCols, a.scale_log2, alpha);
    WarpgroupWait<0>();
    Pin(st.o);
#pragma unroll
    for (int i = 0; i < kHeadDim / 2; ++i) st.o[i] *= alpha[i / 2 & 1];
    PackWeights<T>(st);
  }
  ArrivedEverywhere();
  Pin(st.o);
  WarpgroupFence();
  IssueValues<T>(st, v + ((tiles - 1) & 1) * Shape::kTileBytes);
  WarpgroupWait<0>();
  Pin(st.o);
  WriteBlocks<T, kHeadDim>(st, a, place, shared);
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

template <typename T, int kHeadDim>
__global__ void __launch_bounds__(HopperShape<kHeadDim>::kThreads, 1) HopperPrefillKernel(const PrefillArgs<T> a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) char dynamic[];
  PrefillPlace place;
  place.tile = a.tiles[blockIdx.x / a.kv_heads];
  if (place.tile.query_len == 0) return;
  place.kv_head = blockIdx.x % a.kv_heads;
  place.token0 = a.query_start[place.tile.seq];
  place.rows = place.tile.query_len * a.group;
  place.position = place.tile.length - place.tile.query_len;
  HopperTile<T, kHeadDim>(a, place, dynamic + (1024 - SharedAddress(dynamic) % 1024) % 1024);
#else
  __trap();  // the launcher never picks it on other devices
#endif
}

}  // namespace fastllm::cuda
