// Ragged causal attention over the paged cache for sequences of any query length: prefill chunks, and decodes that the
// decode kernel does not take. One block does kPrefillRows rows of one sequence and KV head; a row is a (query token,
// head of the group) pair, tokens slow, so that the heads of a group share the K and V they read (GQA packed into M).
// Online softmax in base 2 over tiles of K and V (Dao, FlashAttention-2, 2023) on mma.sync.
#pragma once

#include "cuda/attention/decode.cuh"
#include "cuda/attention/plan.h"
#include "cuda/common/mma.cuh"

namespace fastllm::cuda {

template <typename T>
struct PrefillArgs {
  const T* q;
  T* out;
  const T* k;
  const T* v;
  const int32_t* block_table;
  const int32_t* query_start;
  const PrefillTile* tiles;
  int64_t q_stride;
  int64_t out_stride;
  int32_t max_blocks;
  int32_t kv_heads;
  int32_t group;
  int32_t block_shift;
  float scale_log2;
};

template <int kHeadDim>
struct PrefillShape {
  static constexpr int kWarps = kHeadDim > 128 ? 8 : 4;
  static constexpr int kRowTiles = kPrefillRows / 16 / kWarps;  // of 16 rows, per warp
  static constexpr int kCols = kHeadDim > 128 ? 32 : 64;        // positions of one tile of K and V
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kRowBytes = kHeadDim * 2;
  static constexpr int kQBytes = kPrefillRows * kRowBytes;
  static constexpr int kTileBytes = kCols * kRowBytes;
  static constexpr int kSharedBytes = kQBytes + 2 * 2 * kTileBytes;
};

// What a block knows of its tile.
struct PrefillPlace {
  PrefillTile tile;
  int32_t token0;    // first query token of the sequence in q and out
  int32_t rows;      // of the sequence: query_len * group
  int32_t kv_head;
  int32_t position;  // of the sequence's first query token

  __device__ __forceinline__ int32_t PositionOf(int32_t row, int32_t group) const {
    return row < rows ? position + row / group : tile.length - 1;
  }
};

template <typename T, int kHeadDim>
__device__ __forceinline__ void LoadQueries(const PrefillArgs<T>& a, const PrefillPlace& place, uint32_t shared) {
  constexpr int kChunks = kHeadDim / 8;
#pragma unroll 4
  for (int i = threadIdx.x; i < kPrefillRows * kChunks; i += blockDim.x) {
    const int r = i / kChunks;
    const int c = i % kChunks;
    const int32_t row = place.tile.first_row + r;
    const bool valid = row < place.rows;
    const int32_t token = valid ? row / a.group : 0;
    const int32_t head = place.kv_head * a.group + (valid ? row - token * a.group : 0);
    const T* q = a.q + (place.token0 + token) * a.q_stride + static_cast<int64_t>(head) * kHeadDim + c * 8;
    CopyAsync16(shared + TileOffset<kHeadDim>(r, c), q, valid);
  }
}

// One tile of K (or V) from position `first` on; zeros past the end of the sequence.
template <typename T, int kHeadDim>
__device__ __forceinline__ void LoadKeys(const PrefillArgs<T>& a, const PrefillPlace& place, const int32_t* table,
                                         int32_t first, uint32_t shared) {
  using Shape = PrefillShape<kHeadDim>;
  constexpr int kChunks = kHeadDim / 8;
#pragma unroll
  for (int i = 0; i < Shape::kCols * kChunks / Shape::kThreads; ++i) {
    const int chunk = i * Shape::kThreads + threadIdx.x;
    const int r = chunk / kChunks;
    const int c = chunk % kChunks;
    const int32_t position = first + r;
    const bool valid = position < place.tile.length;
    const int64_t page = valid ? __ldg(table + (position >> a.block_shift)) : 0;
    const int32_t row = position & ((1 << a.block_shift) - 1);
    const int64_t from = ((((page * a.kv_heads + place.kv_head) << a.block_shift) + row)) * kHeadDim + c * 8;
    const uint32_t to = shared + TileOffset<kHeadDim>(r, c);
    CopyAsync16(to, a.k + from, valid);
    CopyAsync16(to + Shape::kTileBytes, a.v + from, valid);
  }
}

// A warp's accumulators. Element e of a fragment is row lane / 4 + 8 (e / 2), column 2 (lane % 4) + e % 2.
template <int kHeadDim>
struct PrefillState {
  static constexpr int kRowTiles = PrefillShape<kHeadDim>::kRowTiles;
  float o[kRowTiles][kHeadDim / 8][4];
  float m[kRowTiles][2];
  float l[kRowTiles][2];
};

template <typename T, int kHeadDim>
__device__ __forceinline__ void Scores(float (&x)[PrefillShape<kHeadDim>::kRowTiles][PrefillShape<kHeadDim>::kCols / 8][4],
                                       uint32_t q, uint32_t k) {
  using Shape = PrefillShape<kHeadDim>;
  const int lane = threadIdx.x & 31;
  const int warp = threadIdx.x >> 5;
#pragma unroll
  for (int d = 0; d < kHeadDim / 16; ++d) {
    uint32_t a[Shape::kRowTiles][4];
#pragma unroll
    for (int t = 0; t < Shape::kRowTiles; ++t) {
      LoadMatrix4(a[t], q + TileOffset<kHeadDim>((warp * Shape::kRowTiles + t) * 16 + lane % 16, 2 * d + lane / 16));
    }
#pragma unroll
    for (int n = 0; n < Shape::kCols / 16; ++n) {
      uint32_t b[4];
      LoadMatrix4(b, k + TileOffset<kHeadDim>(n * 16 + lane % 8 + lane / 16 * 8, 2 * d + (lane / 8 & 1)));
#pragma unroll
      for (int t = 0; t < Shape::kRowTiles; ++t) {
        Mma16816<T>(x[t][2 * n], a[t], b[0], b[1]);
        Mma16816<T>(x[t][2 * n + 1], a[t], b[2], b[3]);
      }
    }
  }
}

template <int kHeadDim, int kTiles>
__device__ __forceinline__ void OnlineSoftmax(PrefillState<kHeadDim>& s, int t, float (&x)[kTiles][4],
                                              float scale_log2) {
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    float top = s.m[t][j];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) top = fmaxf(top, fmaxf(x[n][2 * j], x[n][2 * j + 1]));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    const float alpha = Exp2((s.m[t][j] - top) * scale_log2);
    const float shift = top * scale_log2;
    s.m[t][j] = top;
    float sum = 0.0f;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int e = 2 * j; e < 2 * j + 2; ++e) {
        x[n][e] = Exp2(fmaf(x[n][e], scale_log2, -shift));
        sum += x[n][e];
      }
    }
    s.l[t][j] = s.l[t][j] * alpha + sum;
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n) {
      s.o[t][n][2 * j] *= alpha;
      s.o[t][n][2 * j + 1] *= alpha;
    }
  }
}

template <typename T, int kHeadDim>
__device__ __forceinline__ void AddValues(PrefillState<kHeadDim>& s,
                                          const float (&x)[PrefillShape<kHeadDim>::kRowTiles]
                                                          [PrefillShape<kHeadDim>::kCols / 8][4],
                                          uint32_t v) {
  using Shape = PrefillShape<kHeadDim>;
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int k = 0; k < Shape::kCols / 16; ++k) {
    uint32_t p[Shape::kRowTiles][4];
#pragma unroll
    for (int t = 0; t < Shape::kRowTiles; ++t) {
      p[t][0] = PackTwo<T>(x[t][2 * k][0], x[t][2 * k][1]);
      p[t][1] = PackTwo<T>(x[t][2 * k][2], x[t][2 * k][3]);
      p[t][2] = PackTwo<T>(x[t][2 * k + 1][0], x[t][2 * k + 1][1]);
      p[t][3] = PackTwo<T>(x[t][2 * k + 1][2], x[t][2 * k + 1][3]);
    }
#pragma unroll
    for (int n = 0; n < kHeadDim / 16; ++n) {
      uint32_t b[4];
      LoadMatrix4Transposed(b, v + TileOffset<kHeadDim>(k * 16 + lane % 16, 2 * n + lane / 16));
#pragma unroll
      for (int t = 0; t < Shape::kRowTiles; ++t) {
        Mma16816<T>(s.o[t][2 * n], p[t], b[0], b[1]);
        Mma16816<T>(s.o[t][2 * n + 1], p[t], b[2], b[3]);
      }
    }
  }
}

// Divides by the sums and writes the warp's rows, through its own part of the query tile so that stores are 16 bytes.
template <typename T, int kHeadDim>
__device__ __forceinline__ void WriteRows(PrefillState<kHeadDim>& s, const PrefillArgs<T>& a,
                                          const PrefillPlace& place, char* shared_q) {
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
      const float inverse = 1.0f / l;
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

template <typename T, int kHeadDim>
__device__ __forceinline__ void PrefillStep(PrefillState<kHeadDim>& s, const PrefillArgs<T>& a,
                                            const PrefillPlace& place, uint32_t q, uint32_t kv, int32_t first) {
  using Shape = PrefillShape<kHeadDim>;
  const int lane = threadIdx.x & 31;
  const int32_t warp_row = place.tile.first_row + (threadIdx.x >> 5) * Shape::kRowTiles * 16;
  if (first > place.PositionOf(min(warp_row + Shape::kRowTiles * 16, place.rows) - 1, a.group)) return;
  float x[Shape::kRowTiles][Shape::kCols / 8][4] = {};
  Scores<T, kHeadDim>(x, q, kv);
  if (first + Shape::kCols - 1 > place.PositionOf(warp_row, a.group)) {
#pragma unroll
    for (int t = 0; t < Shape::kRowTiles; ++t) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int32_t last = place.PositionOf(warp_row + t * 16 + lane / 4 + j * 8, a.group) - first - lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < Shape::kCols / 8; ++n) {
          if (n * 8 > last) x[t][n][2 * j] = -INFINITY;
          if (n * 8 + 1 > last) x[t][n][2 * j + 1] = -INFINITY;
        }
      }
    }
  }
#pragma unroll
  for (int t = 0; t < Shape::kRowTiles; ++t) OnlineSoftmax<kHeadDim>(s, t, x[t], a.scale_log2);
  AddValues<T, kHeadDim>(s, x, kv + Shape::kTileBytes);
}

template <typename T, int kHeadDim>
__global__ void __launch_bounds__(PrefillShape<kHeadDim>::kThreads) PrefillKernel(const PrefillArgs<T> a) {
  using Shape = PrefillShape<kHeadDim>;
  extern __shared__ __align__(128) char shared[];
  PrefillPlace place;
  place.tile = a.tiles[blockIdx.x / a.kv_heads];
  if (place.tile.query_len == 0) return;
  place.kv_head = blockIdx.x % a.kv_heads;
  place.token0 = a.query_start[place.tile.seq];
  place.rows = place.tile.query_len * a.group;
  place.position = place.tile.length - place.tile.query_len;
  const int32_t* table = a.block_table + static_cast<int64_t>(place.tile.seq) * a.max_blocks;
  const uint32_t q = SharedAddress(shared);
  const uint32_t ring = q + Shape::kQBytes;

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
  LoadQueries<T, kHeadDim>(a, place, q);
  LoadKeys<T, kHeadDim>(a, place, table, 0, ring);
  CopyAsyncCommit();
  int32_t stage = 0;
  for (int32_t first = 0; first < end; first += Shape::kCols) {
    if (first + Shape::kCols < end) {
      LoadKeys<T, kHeadDim>(a, place, table, first + Shape::kCols, ring + (stage ^ 1) * 2 * Shape::kTileBytes);
    }
    CopyAsyncCommit();
    CopyAsyncWait<1>();
    __syncthreads();
    PrefillStep<T, kHeadDim>(s, a, place, q, ring + stage * 2 * Shape::kTileBytes, first);
    __syncthreads();
    stage ^= 1;
  }
  WriteRows<T, kHeadDim>(s, a, place, shared);
}

}  // namespace fastllm::cuda
