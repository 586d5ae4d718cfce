// Ragged causal attention over the paged cache for sequences of any query length: prefill chunks, and decodes that the
// decode kernel does not take. One block does kPrefillRows rows of one sequence and KV head; a row is a (query token,
// head of the group) pair, tokens slow, so that the heads of a group share the K and V they read (GQA packed into M).
// Online softmax in base 2 over tiles of K and V (Dao, FlashAttention-2, 2023) on mma.sync.
#pragma once

#include "cuda/attention/prefill_tile.cuh"

namespace fastllm::cuda {

// Divides by the sums and writes the warp's rows, through its own part of the query tile so that stores are 16 bytes.
template <typename T, int kHeadDim>
__device__ __forceinline__ void WriteRows(PrefillState<kHeadDim>& s, const PrefillArgs<T>& a, const PrefillPlace& place,
                                          char* shared_q) {
  using Shape = PrefillShape<kHeadDim>;
  constexpr int kChunks = kHeadDim / 8;
  const int lane = threadIdx.x & 31;
  const int row0 = (threadIdx.x >> 5) * Shape::kRowTiles * 16;
#pragma unroll
  for (int t = 0; t < Shape::kRowTiles; ++t) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float l = s.l[t][j];
      l += __shfl_xor_sync(0xffffffffu, l, 1);
      l += __shfl_xor_sync(0xffffffffu, l, 2);
      const float inverse = a.value_scale / l;
      const int r = row0 + t * 16 + lane / 4 + j * 8;
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; ++n) {
        *reinterpret_cast<uint32_t*>(shared_q + TileOffset<kHeadDim>(r, n) + lane % 4 * 4) =
            PackTwo<T>(s.o[t][n][2 * j] * inverse, s.o[t][n][2 * j + 1] * inverse);
      }
    }
  }
  __syncwarp();
  for (int i = lane; i < Shape::kRowTiles * 16 * kChunks; i += 32) {
    const int r = row0 + i / kChunks;
    const int c = i % kChunks;
    const int32_t row = place.tile.first_row + r;
    if (row >= place.rows) continue;
    const int32_t token = row / a.group;
    const int32_t head = place.kv_head * a.group + row - token * a.group;
    *reinterpret_cast<uint4*>(a.out + (place.token0 + token) * a.out_stride + static_cast<int64_t>(head) * kHeadDim +
                              c * 8) = *reinterpret_cast<const uint4*>(shared_q + TileOffset<kHeadDim>(r, c));
  }
}

// Scores of positions that a row does not see become -inf. first: the tile's first position; last_row: the warp's.
template <typename T, int kHeadDim>
__device__ __forceinline__ void MaskScores(
    float (&x)[PrefillShape<kHeadDim>::kRowTiles][PrefillShape<kHeadDim>::kCols / 8][4], const PrefillArgs<T>& a,
    const PrefillPlace& place, int32_t warp_row, int32_t last_row, int32_t first) {
  using Shape = PrefillShape<kHeadDim>;
  const int lane = threadIdx.x & 31;
  const bool right = first + Shape::kCols - 1 > place.PositionOf(warp_row, a.group);
  const bool left = first <= place.PositionOf(last_row, a.group) - a.window;
  if (!right && !left) return;
#pragma unroll
  for (int t = 0; t < Shape::kRowTiles; ++t) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int32_t last = place.PositionOf(warp_row + t * 16 + lane / 4 + j * 8, a.group) - first - lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < Shape::kCols / 8; ++n) {
        if (n * 8 > last || n * 8 <= last - a.window) x[t][n][2 * j] = -INFINITY;
        if (n * 8 + 1 > last || n * 8 + 1 <= last - a.window) x[t][n][2 * j + 1] = -INFINITY;
      }
    }
  }
}

template <typename T, int kHeadDim, bool kCapped>
__device__ __forceinline__ void PrefillStep(PrefillState<kHeadDim>& s, const PrefillArgs<T>& a,
                                            const PrefillPlace& place, uint32_t q, uint32_t kv, int32_t first) {
  using Shape = PrefillShape<kHeadDim>;
  const int32_t warp_row = place.tile.first_row + (threadIdx.x >> 5) * Shape::kRowTiles * 16;
  const int32_t last_row = min(warp_row + Shape::kRowTiles * 16, place.rows) - 1;
  if (first > place.PositionOf(last_row, a.group)) return;
  if (first + Shape::kCols <= place.PositionOf(warp_row, a.group) + 1 - a.window) return;
  float x[Shape::kRowTiles][Shape::kCols / 8][4] = {};
  Scores<T, kHeadDim>(x, q, kv);
  if constexpr (kCapped) {
#pragma unroll
    for (int t = 0; t < Shape::kRowTiles; ++t) {
#pragma unroll
      for (int n = 0; n < Shape::kCols / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) x[t][n][e] = TanhFast(x[t][n][e] * a.cap_inverse);
      }
    }
  }
  MaskScores<T, kHeadDim>(x, a, place, warp_row, last_row, first);
#pragma unroll
  for (int t = 0; t < Shape::kRowTiles; ++t) OnlineSoftmax<kHeadDim>(s, t, x[t], a.scale_log2);
  AddValues<T, kHeadDim>(s, x, kv + Shape::kTileBytes);
}

// KV: the element of the cache, T or fp8. Two stages of K and V; of fp8, two of bytes and one of T between them and
// the products, in the same room.
template <typename T, typename KV, int kHeadDim, bool kCapped>
__global__ void __launch_bounds__(PrefillShape<kHeadDim>::kThreads) PrefillKernel(const PrefillArgs<T> a) {
  using Shape = PrefillShape<kHeadDim>;
  extern __shared__ __align__(128) char shared[];
  PrefillPlace place;
  place.tile = a.tiles[blockIdx.x / a.kv_heads];
  if (place.tile.query_len == 0) return;
  place.kv_head = blockIdx.x % a.kv_heads;
  place.token0 = place.tile.token;
  place.rows = place.tile.query_len * a.group;
  place.position = place.tile.length - place.tile.query_len;
  place.unseen = max(0, place.PositionOf(place.tile.first_row, a.group) + 1 - a.window);
  const int32_t* table = a.block_table + static_cast<int64_t>(place.tile.seq) * a.max_blocks;
  const uint32_t q = SharedAddress(shared);
  constexpr bool kBytes = sizeof(KV) == 1;
  constexpr int kLoadBytes = kBytes ? Shape::kTileBytes : 2 * Shape::kTileBytes;  // of a stage
  const uint32_t keys = q + Shape::kQBytes;
  const uint32_t ring = keys + (kBytes ? 2 * Shape::kTileBytes : 0);

  PrefillState<kHeadDim> s;
#pragma unroll
  for (int t = 0; t < Shape::kRowTiles; ++t) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      s.m[t][j] = -INFINITY;
      s.l[t][j] = 0.0f;
    }
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) s.o[t][n][e] = 0.0f;
    }
  }

  const int32_t last_row = min(place.tile.first_row + kPrefillRows, place.rows) - 1;
  const int32_t end = place.PositionOf(last_row, a.group) + 1;
  const int32_t begin = place.unseen / Shape::kCols * Shape::kCols;
  LoadQueries<T, kHeadDim>(a, place, q);
  LoadKeys<T, KV, kHeadDim>(a, place, table, begin, ring);
  CopyAsyncCommit();
  int32_t stage = 0;
  for (int32_t first = begin; first < end; first += Shape::kCols) {
    if (first + Shape::kCols < end) {
      LoadKeys<T, KV, kHeadDim>(a, place, table, first + Shape::kCols, ring + (stage ^ 1) * kLoadBytes);
    }
    CopyAsyncCommit();
    CopyAsyncWait<1>();
    __syncthreads();
    if constexpr (kBytes) {
      WidenKeys<T, kHeadDim>(shared + (ring - q) + stage * kLoadBytes, shared + (keys - q));
      __syncthreads();
    }
    PrefillStep<T, kHeadDim, kCapped>(s, a, place, q, kBytes ? keys : ring + stage * kLoadBytes, first);
    __syncthreads();
    stage ^= 1;
  }
  WriteRows<T, kHeadDim>(s, a, place, shared);
}

}  // namespace fastllm::cuda
