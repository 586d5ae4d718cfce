// How the decode kernel (decode.cuh) streams K and V: its arguments, the ring of stages, the walk over tiles.
#pragma once

#include "cuda/attention/plan.h"
#include "cuda/common/mma.cuh"

namespace fastllm::cuda {

// KV: the element of the cache, T or fp8.
template <typename T, typename KV = T>
struct DecodeArgs {
  const T* q;
  T* out;
  const KV* k;
  const KV* v;
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
  float scale_log2;     // scale * log2(e); with a soft cap, cap * log2(e)
  float cap_inverse;    // scale / cap, or 0
  int32_t window;       // kNoWindow: none
  float value_scale;    // v_scale of an fp8 cache, else 1; its k_scale is in `scale` above
};

// Where 16-byte chunk c of row r lies in a tile, so that eight rows of one ldmatrix fall into different banks.
// kSize: bytes of an element.
template <int kHeadDim, int kSize = 2>
__device__ __forceinline__ uint32_t TileOffset(int r, int c) {
  constexpr int kRowBytes = kHeadDim * kSize;
  const int swizzle = kRowBytes % 128 == 0 ? r & 7 : kRowBytes % 64 == 0 ? (r >> 1) & 3 : (r >> 2) & 1;
  return r * kRowBytes + ((c ^ swizzle) << 4);
}

template <int kHeadDim, int kStages, int kSize = 2>
struct DecodeShape {
  static constexpr int kTileBytes = kTileTokens * kHeadDim * kSize;  // of K or of V
  static constexpr int kStageBytes = 2 * kTileBytes;
  static constexpr int kWarpBytes = kStages * kStageBytes;
  static constexpr int kRow = kHeadDim + 4;  // floats; the pad spreads the banks
  static constexpr int SharedBytes(int heads) { return kDecodeWarps * (kWarpBytes + heads * kRow * 4 + heads * 8); }
};

// The tiles, kDecodeWarps apart, that a warp has of some units of a pair.
struct TileSpan {
  int32_t begin;
  int32_t end;
};

template <typename T, typename KV>
__device__ __forceinline__ TileSpan SpanOf(const DecodeArgs<T, KV>& a, const DecodeSequence& s, int32_t first_unit,
                                           int32_t units, int32_t warp) {
  const int32_t unseen = max(0, s.length - a.window);
  const int32_t unit = unseen / kUnitTokens + first_unit;
  int32_t begin = unit * kDecodeWarps + warp;
  if (begin < unseen / kTileTokens) begin += kDecodeWarps;  // its pages may be gone
  return {begin, min((unit + units) * kDecodeWarps, (s.length + kTileTokens - 1) / kTileTokens)};
}

// Walks the tiles of one warp over the pairs of its worker. `page` is read one tile ahead of its use.
template <typename T, typename KV>
struct TileCursor {
  const DecodeArgs<T, KV>& a;
  int32_t warp, decode, head, left;
  int32_t tile = 0, tile_end = 0, length = 0, page = 0;
  const int32_t* table = nullptr;
  bool valid = true;

  __device__ TileCursor(const DecodeArgs<T, KV>& args, const DecodeWorker& w, int32_t warp_index)
      : a(args), warp(warp_index), decode(w.decode), head(w.kv_head), left(w.units) {
    Enter(w.first, w.first_unit);
    Settle();
  }

  __device__ void Enter(const DecodeSequence& s, int32_t first_unit) {
    const int32_t take = min(s.units - first_unit, left);
    left -= take;
    length = s.length;
    table = a.block_table + static_cast<int64_t>(s.seq) * a.max_blocks;
    const TileSpan span = SpanOf(a, s, first_unit, take, warp);
    tile = span.begin;
    tile_end = span.end;
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
template <typename T, typename KV, int kHeadDim>
__device__ __forceinline__ void IssueTile(TileCursor<T, KV>& c, uint32_t stage) {
  if (c.valid) {
    constexpr int kSize = sizeof(KV);
    constexpr int kElements = 16 / kSize;
    constexpr int kChunks = kHeadDim / kElements;  // of 16 bytes in a row
    const DecodeArgs<T, KV>& a = c.a;
    const int lane = threadIdx.x & 31;
    const uint64_t policy = EvictFirstPolicy();
    const int32_t first = c.tile * kTileTokens;
    const int32_t row0 = first & ((1 << a.block_shift) - 1);
    const int64_t base = ((((static_cast<int64_t>(c.page) * a.kv_heads + c.head) << a.block_shift) + row0)) * kHeadDim;
    const KV* k = a.k + base;
    const KV* v = a.v + base;
    const int32_t rows = c.length - first;  // beyond it zeros: what the cache holds there may not be finite
#pragma unroll
    for (int i = 0; i < kTileTokens * kChunks / 32; ++i) {
      const int chunk = i * 32 + lane;
      const int r = chunk / kChunks;
      const uint32_t to = stage + TileOffset<kHeadDim, kSize>(r, chunk % kChunks);
      CopyAsync16Once(to, k + chunk * kElements, r < rows, policy);
      CopyAsync16Once(to + kTileTokens * kHeadDim * kSize, v + chunk * kElements, r < rows, policy);
    }
    c.Advance();
  }
  CopyAsyncCommit();
}

}  // namespace fastllm::cuda
