// Paged attention of one query row per sequence: memory-bound, so everything serves the stream of K and V.
//
// Each warp streams its own tiles of 16 positions through a private ring of shared-memory stages (cp.async), with no
// barrier among warps until a (sequence, KV head) pair ends. The products run on tensor cores transposed,
//   S^T [16 positions, 8 heads] = K Q^T,   O^T [head_dim, 8 heads] += V^T P^T,
// so that the query heads of one KV head fill the narrow side (n = 8) of m16n8k16 and K and V are the wide operand,
// straight from their rows in memory. Softmax is online, in base 2. Work is cut by the plan (plan.h); the worker that
// finishes a cut pair last adds the parts up, in their order, so that the result does not depend on who was last.
#pragma once

#include "cuda/attention/plan.h"
#include "cuda/common/mma.cuh"

namespace fastllm::cuda {

template <typename T>
struct DecodeArgs {
  const T* q;
  T* out;
  const T* k;
  const T* v;
  const int32_t* block_table;
  const DecodeWorker* workers;
  const DecodeSequence* decodes;
  uint32_t* counters;  // [workers], all zero between launches
  float2* part_sums;   // [2 workers, group]: max (base 2), sum
  float* part_out;     // [2 workers, group, head_dim], not yet divided by the sum
  int64_t q_stride;
  int64_t out_stride;
  int32_t max_blocks;
  int32_t kv_heads;
  int32_t group;
  int32_t block_shift;  // log2(block_size)
  float scale_log2;     // scale * log2(e)
};

// Where 16-byte chunk c of row r lies in a tile, so that eight rows of one ldmatrix fall into different banks.
template <int kHeadDim>
__device__ __forceinline__ uint32_t TileOffset(int r, int c) {
  const int swizzle = kHeadDim % 64 == 0 ? r & 7 : (r >> 1) & 3;
  return r * (kHeadDim * 2) + ((c ^ swizzle) << 4);
}

template <int kHeadDim, int kStages>
struct DecodeShape {
  static constexpr int kTileBytes = kTileTokens * kHeadDim * 2;  // of K or of V
  static constexpr int kStageBytes = 2 * kTileBytes;
  static constexpr int kWarpBytes = kStages * kStageBytes;
  static constexpr int kRow = kHeadDim + 4;  // floats; the pad spreads the banks
  static constexpr int SharedBytes(int heads) {
    return kDecodeWarps * (kWarpBytes + heads * kRow * 4 + heads * 8);
  }
};

// Walks the tiles of one warp over the pairs of its worker. `page` is read one tile ahead of its use.
template <typename T>
struct TileCursor {
  const DecodeArgs<T>& a;
  int32_t warp, decode, head, left;
  int32_t tile = 0, tile_end = 0, length = 0, page = 0;
  const int32_t* table = nullptr;
  bool valid = true;

  __device__ TileCursor(const DecodeArgs<T>& args, const DecodeWorker& w, int32_t warp_index)
      : a(args), warp(warp_index), decode(w.decode), head(w.kv_head), left(w.units) {
    Enter(w.first, w.first_unit);
    Settle();
  }

  __device__ void Enter(const DecodeSequence& s, int32_t first_unit) {
    const int32_t take = min(s.units - first_unit, left);
    left -= take;
    length = s.length;
    table = a.block_table + static_cast<int64_t>(s.seq) * a.max_blocks;
    tile = first_unit * kDecodeWarps + warp;
    tile_end = min((first_unit + take) * kDecodeWarps, (s.length + kTileTokens - 1) / kTileTokens);
  }

  // Moves on to the next pair that has a tile for this warp, and starts the read of its page.
  __device__ void Settle() {
    while (tile >= tile_end) {
      if (left == 0) {
        valid = false;
        return;
      }
      if (++head == a.kv_heads) {
        head = 0;
        ++decode;
      }
      Enter(a.decodes[decode], 0);
    }
    page = __ldg(table + ((tile * kTileTokens) >> a.block_shift));
  }

  __device__ void Advance() {
    tile += kDecodeWarps;
    Settle();
  }
};

// Starts the copy of the cursor's tile into a stage; always closes one copy group.
template <typename T, int kHeadDim>
__device__ __forceinline__ void IssueTile(TileCursor<T>& c, uint32_t stage) {
  if (c.valid) {
    constexpr int kChunks = kHeadDim / 8;  // of 16 bytes in a row
    const DecodeArgs<T>& a = c.a;
    const int lane = threadIdx.x & 31;
    const uint64_t policy = EvictFirstPolicy();
    const int32_t first = c.tile * kTileTokens;
    const int32_t row0 = first & ((1 << a.block_shift) - 1);
    const int64_t base =
        ((((static_cast<int64_t>(c.page) * a.kv_heads + c.head) << a.block_shift) + row0)) * kHeadDim;
    const T* k = a.k + base;
    const T* v = a.v + base;
    const int32_t rows = c.length - first;  // beyond it zeros: what the cache holds there may not be finite
#pragma unroll
    for (int i = 0; i < kTileTokens * kChunks / 32; ++i) {
      const int chunk = i * 32 + lane;
      const int r = chunk / kChunks;
      const uint32_t to = stage + TileOffset<kHeadDim>(r, chunk % kChunks);
      CopyAsync16Once(to, k + chunk * 8, r < rows, policy);
      CopyAsync16Once(to + kTileTokens * kHeadDim * 2, v + chunk * 8, r < rows, policy);
    }
    c.Advance();
  }
  CopyAsyncCommit();
}

// The state of one pair in one warp. Column 2 (lane % 4) + j of head tile n is in element j of m and l.
template <int kHeadDim, int kHeadTiles>
struct DecodeState {
  uint32_t q[kHeadTiles][kHeadDim / 16][2];
  float o[kHeadTiles][kHeadDim / 16][4];
  float m[kHeadTiles][2];
  float l[kHeadTiles][2];
};

template <typename T, int kHeadDim, int kHeadTiles>
__device__ __forceinline__ void StartPair(DecodeState<kHeadDim, kHeadTiles>& s, const DecodeArgs<T>& a, int32_t token,
                                          int32_t kv_head) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int n = 0; n < kHeadTiles; ++n) {
    const int head = n * 8 + lane / 4;
    const T* q = a.q + token * a.q_stride + (static_cast<int64_t>(kv_head) * a.group + head) * kHeadDim + lane % 4 * 2;
#pragma unroll
    for (int d = 0; d < kHeadDim / 16; ++d) {
      s.q[n][d][0] = head < a.group ? *reinterpret_cast<const uint32_t*>(q + d * 16) : 0u;
      s.q[n][d][1] = head < a.group ? *reinterpret_cast<const uint32_t*>(q + d * 16 + 8) : 0u;
#pragma unroll
      for (int e = 0; e < 4; ++e) s.o[n][d][e] = 0.0f;
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      s.m[n][j] = -INFINITY;
      s.l[n][j] = 0.0f;
    }
  }
}

// New maximum, weights of the tile's scores, and the P^T fragments of one head tile.
template <typename T, int kHeadDim, int kHeadTiles>
__device__ __forceinline__ void Softmax(DecodeState<kHeadDim, kHeadTiles>& s, int n, float (&x)[4], uint32_t (&p)[2]) {
  float alpha[2];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    float top = fmaxf(x[j], x[j + 2]);
#pragma unroll
    for (int d = 4; d < 32; d *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, d));
    top = fmaxf(top, s.m[n][j]);
    alpha[j] = Exp2(s.m[n][j] - top);
    s.m[n][j] = top;
    x[j] = Exp2(x[j] - top);
    x[j + 2] = Exp2(x[j + 2] - top);
    s.l[n][j] = s.l[n][j] * alpha[j] + (x[j] + x[j + 2]);
  }
  if (__any_sync(0xffffffffu, alpha[0] < 1.0f || alpha[1] < 1.0f)) {
#pragma unroll
    for (int d = 0; d < kHeadDim / 16; ++d) {
#pragma unroll
      for (int e = 0; e < 4; ++e) s.o[n][d][e] *= alpha[e & 1];
    }
  }
  p[0] = TransposeMatrix(PackTwo<T>(x[0], x[1]));
  p[1] = TransposeMatrix(PackTwo<T>(x[2], x[3]));
}

template <typename T, int kHeadDim, int kHeadTiles>
__device__ __forceinline__ void DoTile(DecodeState<kHeadDim, kHeadTiles>& s, uint32_t stage, int32_t valid_rows,
                                       float scale_log2) {
  const int lane = threadIdx.x & 31;
  float x[kHeadTiles][4] = {};
#pragma unroll
  for (int d = 0; d < kHeadDim / 16; ++d) {
    uint32_t a[4];
    LoadMatrix4(a, stage + TileOffset<kHeadDim>(lane % 16, 2 * d + lane / 16));
#pragma unroll
    for (int n = 0; n < kHeadTiles; ++n) Mma16816<T>(x[n], a, s.q[n][d][0], s.q[n][d][1]);
  }
  uint32_t p[kHeadTiles][2];
#pragma unroll
  for (int n = 0; n < kHeadTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int row = lane / 4 + (e >= 2 ? 8 : 0);
      x[n][e] = row < valid_rows ? x[n][e] * scale_log2 : -INFINITY;
    }
    Softmax<T>(s, n, x[n], p[n]);
  }
  const uint32_t v = stage + kTileTokens * kHeadDim * 2;
#pragma unroll
  for (int d = 0; d < kHeadDim / 16; ++d) {
    uint32_t a[4];
    LoadMatrix4Transposed(a, v + TileOffset<kHeadDim>(lane % 8 + lane / 16 * 8, 2 * d + (lane / 8 & 1)));
#pragma unroll
    for (int n = 0; n < kHeadTiles; ++n) Mma16816<T>(s.o[n][d], a, p[n][0], p[n][1]);
  }
}

// The pair's place in the split: which parts there are and where this worker's goes.
struct PairPart {
  int32_t slot;   // of this worker's part, -1: the pair is not cut
  int32_t owner;  // the parts are at slots 2 owner + 1, 2 (owner + 1), 2 (owner + 2), ...
  int32_t parts;
};

__device__ __forceinline__ void StoreFour(float* to, float4 x) { *reinterpret_cast<float4*>(to) = x; }

template <typename T>
__device__ __forceinline__ void StoreFour(T* to, float4 x) {
  *reinterpret_cast<uint2*>(to) = make_uint2(PackTwo<T>(x.x, x.y), PackTwo<T>(x.z, x.w));
}

__device__ __forceinline__ void AddScaled(float4& acc, float w, const float4& x) {
  acc.x += w * x.x;
  acc.y += w * x.y;
  acc.z += w * x.z;
  acc.w += w * x.w;
}

__device__ __forceinline__ float4 Scaled(const float4& x, float w) {
  return make_float4(x.x * w, x.y * w, x.z * w, x.w * w);
}

// Adds the parts of a cut pair and writes its output rows. Block-wide. scratch: kChunk * group elements.
template <typename T, int kHeadDim>
__device__ void CombineParts(const DecodeArgs<T>& a, const PairPart& part, T* out, float2* scratch) {
  constexpr int kFours = kHeadDim / 4;
  constexpr int kChunk = 64;
  const auto row = [&](int j) { return static_cast<int64_t>(2 * (part.owner + j) + (j == 0)) * a.group; };
  for (int first = 0; first < a.group * kFours; first += blockDim.x) {
    const int i = first + threadIdx.x;
    const int head = i / kFours;
    float top = -INFINITY;
    float sum = 0.0f;
    float4 acc = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int base = 0; base < part.parts; base += kChunk) {
      const int n = min(kChunk, part.parts - base);
      __syncthreads();
      for (int e = threadIdx.x; e < n * a.group; e += blockDim.x) {
        scratch[e] = __ldcg(&a.part_sums[row(base + e / a.group) + e % a.group]);
      }
      __syncthreads();
      if (head >= a.group) continue;
      float new_top = top;
      for (int j = 0; j < n; ++j) new_top = fmaxf(new_top, scratch[j * a.group + head].x);
      const float alpha = Exp2(top - new_top);
      acc = Scaled(acc, alpha);
      sum *= alpha;
      top = new_top;
#pragma unroll 16
      for (int j = 0; j < n; ++j) {
        const float2 ml = scratch[j * a.group + head];
        const float w = Exp2(ml.x - top);
        sum += w * ml.y;
        AddScaled(acc, w,
                  __ldcg(reinterpret_cast<const float4*>(a.part_out + (row(base + j) + head) * kHeadDim) + i % kFours));
      }
    }
    if (head < a.group) StoreFour(out + head * kHeadDim + i % kFours * 4, Scaled(acc, 1.0f / sum));
  }
}

// Merges the warps' states of a finished pair through shared memory. Block-wide; ends with a barrier.
template <typename T, int kHeadDim, int kHeadTiles, int kStages>
__device__ void FinishPair(DecodeState<kHeadDim, kHeadTiles>& s, const DecodeArgs<T>& a, const PairPart& part, T* out,
                           float* shared_out) {
  constexpr int kRow = DecodeShape<kHeadDim, kStages>::kRow;
  constexpr int kFours = kHeadDim / 4;
  __shared__ bool is_last;
  const int lane = threadIdx.x & 31;
  const int warp = threadIdx.x >> 5;
  auto* shared_ml = reinterpret_cast<float2*>(shared_out + kDecodeWarps * a.group * kRow);
#pragma unroll
  for (int n = 0; n < kHeadTiles; ++n) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float l = s.l[n][j];
#pragma unroll
      for (int d = 4; d < 32; d *= 2) l += __shfl_xor_sync(0xffffffffu, l, d);
      const int head = n * 8 + lane % 4 * 2 + j;
      if (head >= a.group) continue;
      if (lane < 4) shared_ml[warp * a.group + head] = make_float2(s.m[n][j], l);
      float* to = shared_out + (warp * a.group + head) * kRow + lane / 4;
#pragma unroll
      for (int d = 0; d < kHeadDim / 16; ++d) {
        to[d * 16] = s.o[n][d][j];
        to[d * 16 + 8] = s.o[n][d][j + 2];
      }
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < a.group * kFours; i += blockDim.x) {
    const int head = i / kFours;
    float top = -INFINITY;
#pragma unroll
    for (int w = 0; w < kDecodeWarps; ++w) top = fmaxf(top, shared_ml[w * a.group + head].x);
    float sum = 0.0f;
    float4 acc = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int w = 0; w < kDecodeWarps; ++w) {
      const float2 ml = shared_ml[w * a.group + head];
      const float weight = Exp2(ml.x - top);
      sum += weight * ml.y;
      AddScaled(acc, weight,
                *reinterpret_cast<const float4*>(shared_out + (w * a.group + head) * kRow + i % kFours * 4));
    }
    if (part.slot < 0) {
      StoreFour(out + head * kHeadDim + i % kFours * 4, Scaled(acc, 1.0f / sum));
    } else {
      const int64_t row = static_cast<int64_t>(part.slot) * a.group + head;
      StoreFour(a.part_out + row * kHeadDim + i % kFours * 4, acc);
      if (i % kFours == 0) a.part_sums[row] = make_float2(top, sum);
    }
  }
  if (part.slot >= 0) {
    __threadfence();
    __syncthreads();
    // Wraps to zero when the last part arrives, ready for the next launch.
    if (threadIdx.x == 0) is_last = atomicInc(a.counters + part.owner, part.parts - 1) == part.parts - 1;
    __syncthreads();
    if (is_last) {
      __threadfence();
      CombineParts<T, kHeadDim>(a, part, out, reinterpret_cast<float2*>(shared_out));
    }
  }
  __syncthreads();
}

template <typename T, int kHeadDim, int kHeadTiles, int kStages>
__global__ void __launch_bounds__(kDecodeWarps * 32, DecodeBlocksPerSm(kHeadDim)) DecodeKernel(const DecodeArgs<T> a) {
  using Shape = DecodeShape<kHeadDim, kStages>;
  extern __shared__ __align__(128) char shared[];
  const int warp = threadIdx.x >> 5;
  const DecodeWorker w = a.workers[blockIdx.x];
  if (w.units == 0) return;
  const uint32_t ring = SharedAddress(shared) + warp * Shape::kWarpBytes;
  auto* shared_out = reinterpret_cast<float*>(shared + kDecodeWarps * Shape::kWarpBytes);

  TileCursor<T> load(a, w, warp);
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) IssueTile<T, kHeadDim>(load, ring + i * Shape::kStageBytes);

  DecodeState<kHeadDim, kHeadTiles> s;
  int32_t decode = w.decode, head = w.kv_head, first_unit = w.first_unit, left = w.units;
  uint32_t stage = 0;
  DecodeSequence seq = w.first;
  while (left > 0) {
    const int32_t units = min(seq.units - first_unit, left);
    const int32_t tile_end = min((first_unit + units) * kDecodeWarps, (seq.length + kTileTokens - 1) / kTileTokens);
    StartPair<T>(s, a, seq.token, head);
    for (int32_t tile = first_unit * kDecodeWarps + warp; tile < tile_end; tile += kDecodeWarps) {
      CopyAsyncWait<kStages - 2>();
      __syncwarp();
      const uint32_t next = stage == 0 ? kStages - 1 : stage - 1;
      IssueTile<T, kHeadDim>(load, ring + next * Shape::kStageBytes);
      DoTile<T>(s, ring + stage * Shape::kStageBytes, seq.length - tile * kTileTokens, a.scale_log2);
      stage = stage == kStages - 1 ? 0 : stage + 1;
    }
    PairPart part{-1, static_cast<int32_t>(blockIdx.x), 1};
    if (first_unit > 0) {
      part = {2 * static_cast<int32_t>(blockIdx.x), w.owner, w.owner_parts};
    } else if (units < seq.units) {
      part = {2 * static_cast<int32_t>(blockIdx.x) + 1, static_cast<int32_t>(blockIdx.x), w.tail_parts};
    }
    T* out = a.out + seq.token * a.out_stride + static_cast<int64_t>(head) * a.group * kHeadDim;
    FinishPair<T, kHeadDim, kHeadTiles, kStages>(s, a, part, out, shared_out);
    left -= units;
    first_unit = 0;
    if (++head == a.kv_heads) {
      head = 0;
      ++decode;
      if (left > 0) seq = a.decodes[decode];
    }
  }
}

}  // namespace fastllm::cuda
