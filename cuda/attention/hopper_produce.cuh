// The producer warpgroup of the Hopper prefill kernel: warp 0 takes work items and feeds the rings of K and V with bulk
// copies, a page each; the other warps fetch Q (whose rows are anywhere, for any group size) an item ahead.
#pragma once

#include "cuda/attention/hopper_shape.cuh"
#include "cuda/common/tma.cuh"
#include "cuda/common/wgmma.cuh"

namespace fastllm::cuda {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

inline constexpr int kQueryThreads = 96;

// Takes items from the launch's shared counter, in the plan's order; one thread.
struct ItemTaker {
  int32_t item;        // taken last
  bool counted;        // it came from the counter
  uint32_t taken = 0;  // the counter then

  // Writes the next item that has work to `place`, or the end. The count for the item after it is not waited for here.
  template <typename T>
  __device__ __forceinline__ void Announce(const HopperArgs<T>& args, HopperPlace* place) {
    while (true) {
      if (counted) {
        // Of `items` counts, one past each item, this is the last of the launch: back to zero for the next.
        if (taken == static_cast<uint32_t>(args.items) - 1) *args.counters = 0;
        item = static_cast<int32_t>(gridDim.x + taken);
      }
      if (item >= args.items) break;
      const auto* from = reinterpret_cast<const int4*>(args.a.tiles + item / args.a.kv_heads);
      const int4 tile[3] = {__ldg(from), __ldg(from + 1), __ldg(from + 2)};
      counted = true;
      taken = atomicAdd(args.counters, 1u);
      if (tile[0].w == 0) continue;
      auto* to = reinterpret_cast<int4*>(&place->tile);
#pragma unroll
      for (int i = 0; i < 3; ++i) to[i] = tile[i];
      place->kv_head = item % args.a.kv_heads;
      return;
    }
    place->kv_head = -1;
  }
};

template <typename T, int kHeadDim>
__device__ __forceinline__ void LoadQueryRows(const PrefillArgs<T>& a, const HopperPlace& place, uint32_t shared) {
  constexpr int kChunks = kHeadDim / 8;
  const int32_t rows = place.Rows(a.group) - place.tile.first_row;
#pragma unroll 2
  for (int i = threadIdx.x - 32; i < kPrefillRows * kChunks; i += kQueryThreads) {
    const int r = i / kChunks;
    const bool valid = r < rows;
    const int32_t row = valid ? place.tile.first_row + r : 0;
    const int32_t token = row / a.group;
    const int32_t head = place.kv_head * a.group + row - token * a.group;
    const T* q =
        a.q + (place.tile.token + token) * a.q_stride + static_cast<int64_t>(head) * kHeadDim + i % kChunks * 8;
    CopyAsync16(shared + HopperShape<kHeadDim>::Offset(r, i % kChunks), q, valid);
  }
}

// Copies column tiles of an item; lanes of one warp, one page each.
template <typename T, int kHeadDim>
struct TileLoader {
  using Shape = HopperShape<kHeadDim>;
  const HopperArgs<T>& args;
  const HopperShared<kHeadDim>& shared;
  const HopperPlace& place;

  // Where this lane's page of the tile is, in 8-row groups of the cache.
  __device__ __forceinline__ int32_t Group(int32_t tile, int32_t rows) const {
    const PrefillArgs<T>& a = args.a;
    const int32_t position = tile * Shape::kCols + static_cast<int32_t>(threadIdx.x & 31) * rows;
    if (position >= place.tile.length || (threadIdx.x & 31) * rows >= Shape::kCols) return args.cache_groups;
    const int32_t* table = a.block_table + static_cast<int64_t>(place.tile.seq) * a.max_blocks;
    const int32_t page = __ldg(table + (position >> a.block_shift));
    const int32_t row = position & ((1 << a.block_shift) - 1);
    return (((page * a.kv_heads + place.kv_head) << (a.block_shift - 3))) + row / 8;
  }

  __device__ __forceinline__ void Copy(const CUtensorMap* map, uint32_t full, uint32_t empty, uint32_t phase,
                                       uint32_t to, int32_t group, int32_t rows) const {
    WaitFor(empty, phase ^ 1);
    const uint32_t lane = threadIdx.x & 31;
    if (lane == 0) ArriveExpecting(full, Shape::kTileBytes);
    __syncwarp();
    if (lane * rows < Shape::kCols) {
      CopyBox4(to + lane * (rows / 8) * Shape::kGroupBytes, map, full, 0, 0, 0, group);
    }
  }
  __device__ __forceinline__ void Keys(uint32_t index, int32_t group, int32_t rows) const {
    Copy(&args.k_map, shared.KeysFull(index), shared.KeysEmpty(index), shared.Phase(index), shared.Keys(index), group,
         rows);
  }
  __device__ __forceinline__ void Values(uint32_t index, int32_t group, int32_t rows) const {
    Copy(&args.v_map, shared.ValuesFull(index), shared.ValuesEmpty(index), shared.Phase(index), shared.Values(index),
         group, rows);
  }

  // The last column tile first; K a tile ahead of V, as the consumers want them. index: of the first in the rings.
  __device__ __forceinline__ void All(uint32_t index) const {
    const int32_t rows = min(1 << args.a.block_shift, Shape::kCols);
    int32_t tile = place.tile.first_tile + place.tile.tiles - 1;
    int32_t group = Group(tile, rows);
    Keys(index, group, rows);
    for (; tile > place.tile.first_tile; --tile, ++index) {
      const int32_t next = Group(tile - 1, rows);
      Keys(index + 1, next, rows);
      Values(index, group, rows);
      group = next;
    }
    Values(index, group, rows);
  }
};

template <typename T, int kHeadDim>
__device__ __forceinline__ void Produce(const HopperArgs<T>& args, const HopperShared<kHeadDim>& shared) {
  constexpr int kQBuffers = HopperShape<kHeadDim>::kQBuffers;
  const bool feeds = threadIdx.x < 32;
  ItemTaker taker{static_cast<int32_t>(blockIdx.x), false};
  uint32_t index = 0;
  for (uint32_t i = 0;; ++i) {
    if (threadIdx.x == 0) taker.Announce(args, shared.Place(i));
    SyncNamed(kProducerBarrier, 128);
    const HopperPlace& place = *shared.Place(i);
    if (feeds) {
      if (place.kv_head < 0) return;
      TileLoader<T, kHeadDim>{args, shared, place}.All(index);
      index += place.tile.tiles;
    } else {
      const uint32_t buffer = i % kQBuffers;
      WaitFor(shared.QueriesEmpty(buffer), (i / kQBuffers & 1) ^ 1);
      const bool end = place.kv_head < 0;
      if (!end) LoadQueryRows<T, kHeadDim>(args.a, place, shared.Queries(buffer));
      CopyAsyncCommit();
      CopyAsyncWait<0>();
      FenceForMatrixUnits();
      ArriveAt(shared.QueriesFull(buffer));
      if (end) return;
    }
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace fastllm::cuda
