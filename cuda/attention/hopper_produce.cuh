// The producer warpgroup of the Hopper prefill kernel: warp 0 feeds the ring of K and V with bulk copies, a page each;
// the other warps take the work items and fetch Q, whose rows are anywhere, for any group size.
#pragma once

#include "cuda/attention/hopper_shape.cuh"
#include "cuda/common/tma.cuh"
#include "cuda/common/wgmma.cuh"

namespace fastllm::cuda {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

inline constexpr int kQueryThreads = 96;

// Takes items from the launch's shared counter, in the plan's order; one thread. A captured launch has a grid and a
// record for more items than most steps have: `used` are those with work.
struct ItemTaker {
  int32_t item;  // the block's first, then the one taken last
  bool begun;
  int32_t used;

  template <typename T>
  __device__ __forceinline__ void Take(const HopperArgs<T>& args) {
    const uint32_t taken = atomicAdd(args.counters, 1u);
    // Of `used` counts, one past each item, this is the last of the launch: back to zero for the next.
    if (taken == static_cast<uint32_t>(used) - 1) *args.counters = 0;
    item = static_cast<int32_t>(gridDim.x + taken);
  }

  // Writes the next item to `place`, or the end. The first tile and `used` are read side by side.
  template <typename T>
  __device__ __forceinline__ void Announce(const HopperArgs<T>& args, HopperPlace* place) {
    if (begun) Take(args);
    begun = true;
    if (item < args.items) {
      const auto* from = reinterpret_cast<const int4*>(args.a.tiles + item / args.a.kv_heads);
      const int4 tile[3] = {__ldg(from), __ldg(from + 1), __ldg(from + 2)};
      auto* to = reinterpret_cast<int4*>(&place->tile);
#pragma unroll
      for (int i = 0; i < 3; ++i) to[i] = tile[i];
      place->kv_head = item % args.a.kv_heads;
      place->unseen = max(0, place->PositionOf(args.a, 0) + 1 - args.a.window);
    }
    if (item >= used) place->kv_head = -1;
  }
};

template <typename T, int kHeadDim>
__device__ __forceinline__ void LoadQueryRows(const PrefillArgs<T>& a, const HopperPlace& place, uint32_t shared) {
  constexpr int kChunks = kHeadDim / 8;
  constexpr int kStep = kQueryThreads / kChunks;  // rows
  static_assert(kQueryThreads % kChunks == 0);
  const int c = (threadIdx.x - 32) % kChunks;
  const int first = (threadIdx.x - 32) / kChunks;
  const int32_t rows = place.RowsLeft(a);
  const int32_t step_token = a.TokenOf(kStep);
  const int32_t step_head = kStep - step_token * a.group;
  int32_t token = a.TokenOf(place.tile.first_row + first);
  int32_t head = place.tile.first_row + first - token * a.group;
  const T* q = a.q + static_cast<int64_t>(place.kv_head) * a.group * kHeadDim + c * 8;
  const uint64_t policy = EvictFirstPolicy();  // read once, so that K and V stay in the L2
#pragma unroll 4
  for (int r = first; r < kPrefillRows; r += kStep) {
    const bool valid = r < rows;
    const T* from = q + (place.tile.token + token) * a.q_stride + head * kHeadDim;
    CopyAsync16Once(shared + HopperShape<kHeadDim>::Offset(r, c), valid ? from : q, valid, policy);
    token += step_token;
    head += step_head;
    if (head >= a.group) {
      head -= a.group;
      ++token;
    }
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
    if (position >= place.tile.length || position + rows <= place.unseen || (threadIdx.x & 31) * rows >= Shape::kCols) {
      return args.cache_groups;
    }
    const int32_t* table = a.block_table + static_cast<int64_t>(place.tile.seq) * a.max_blocks;
    const int32_t page = __ldg(table + (position >> a.block_shift));
    const int32_t row = position & ((1 << a.block_shift) - 1);
    return (((page * a.kv_heads + place.kv_head) << (a.block_shift - 3))) + row / 8;
  }

  __device__ __forceinline__ void Copy(const CUtensorMap* map, RingCursor<kHeadDim>& at, int32_t group,
                                       int32_t rows) const {
    WaitFor(shared.Empty(at.slot), at.phase ^ 1);
    const uint32_t lane = threadIdx.x & 31;
    if (lane == 0) ArriveExpecting(shared.Full(at.slot), Shape::kTileBytes);
    __syncwarp();
    if (lane * rows < Shape::kCols) {
      CopyBox4(shared.Tile(at.slot) + lane * (rows / 8) * Shape::kGroupBytes, map, shared.Full(at.slot), 0, 0, 0,
               group);
    }
    at.Advance();
  }

  __device__ __forceinline__ void Ask() const {
    if ((threadIdx.x & 31) == 0) ArriveAt(shared.Wanted());
  }

  // The last column tile first.
  __device__ __forceinline__ void All(RingCursor<kHeadDim>& at) const {
    constexpr int32_t kAhead = 2;  // tiles left when the next item is asked for
    const int32_t rows = min(1 << args.a.block_shift, Shape::kCols);
    int32_t tile = place.tile.first_tile + place.tile.tiles - 1;
    int32_t group = Group(tile, rows);
    const int32_t ask_at = min(place.tile.first_tile + kAhead, tile);
    if (ask_at == tile) Ask();
    Copy(&args.k_map, at, group, rows);
    for (; tile > place.tile.first_tile; --tile) {
      if (ask_at == tile - 1) Ask();
      const int32_t next = Group(tile - 1, rows);
      Copy(&args.k_map, at, next, rows);
      Copy(&args.v_map, at, group, rows);
      group = next;
    }
    Copy(&args.v_map, at, group, rows);
  }
};

// Warp 0.
template <typename T, int kHeadDim>
__device__ __forceinline__ void ProduceTiles(const HopperArgs<T>& args, const HopperShared<kHeadDim>& shared) {
  constexpr int kPlaces = HopperShape<kHeadDim>::kPlaces;
  RingCursor<kHeadDim> at;
  for (uint32_t i = 0;; ++i) {
    WaitFor(shared.PlaceFull(i), i / kPlaces & 1);
    const HopperPlace& place = *shared.Place(i);
    if (place.kv_head < 0) return;
    TileLoader<T, kHeadDim>{args, shared, place}.All(at);
  }
}

// Warps 1 to 3. The next item is taken only when warp 0 is about to need it: until then it is anyone's.
template <typename T, int kHeadDim>
__device__ __forceinline__ void ProduceQueries(const HopperArgs<T>& args, const HopperShared<kHeadDim>& shared) {
  constexpr int kPlaces = HopperShape<kHeadDim>::kPlaces;
  ItemTaker taker{static_cast<int32_t>(blockIdx.x), false, __ldg(args.used_tiles) * args.a.kv_heads};
  for (uint32_t i = 0;; ++i) {
    if (threadIdx.x == 32) {
      if (i > 0) WaitFor(shared.Wanted(), (i - 1) & 1);
      taker.Announce(args, shared.Place(i));
      ArriveAt(shared.PlaceFull(i));
    }
    __syncwarp();
    WaitFor(shared.PlaceFull(i), i / kPlaces & 1);
    const HopperPlace& place = *shared.Place(i);
    const bool end = place.kv_head < 0;
    WaitFor(shared.QueriesEmpty(), (i & 1) ^ 1);  // at the end too, or a phase goes by unseen
    if (!end) {
      LoadQueryRows<T, kHeadDim>(args.a, place, shared.Queries());
      CopyAsyncCommit();
      CopyAsyncWait<0>();
      FenceForMatrixUnits();
    }
    ArriveAt(shared.QueriesFull());
    if (end) return;
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace fastllm::cuda
