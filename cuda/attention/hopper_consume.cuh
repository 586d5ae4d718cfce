// The consumer warpgroups of the Hopper prefill kernel.
#pragma once

#include "cuda/attention/hopper_finish.cuh"
#include "cuda/attention/hopper_port.cuh"

namespace fastllm::cuda {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// One of the two consumer warpgroups. Every column tile but the kernel's first is one turn on the matrix units: the
// scores of the tile and the values of the tile before it, be they of one item or of two.
template <typename T, int kHeadDim, bool kCapped>
struct HopperConsumer {
  using Shape = HopperShape<kHeadDim>;
  const HopperArgs<T>& args;
  const HopperShared<kHeadDim>& shared;
  const uint32_t group;  // warpgroup, 0 or 1
  const int row0;        // of this warp, in a tile's rows
  ConsumerPort<kHeadDim> port;
  HopperState<kHeadDim> st;

  struct Item {
    const HopperPlace* place;  // in shared memory
    bool active;               // this warpgroup has rows in it
  };

  __device__ __forceinline__ Item ItemAt(uint32_t i) const {
    WaitFor(shared.QueriesFull(), i & 1);
    const HopperPlace* place = shared.Place(i);
    return {place, static_cast<int32_t>(group) * 64 < place->RowsLeft(args.a)};
  }
  // Before an item's first scores.
  template <bool kActive>
  __device__ __forceinline__ void FetchQueries() {
    if constexpr (Shape::kQInRegisters) {
      if constexpr (kActive) ReadQueries(st, shared.Queries(), row0);
      __syncwarp();
      port.Release(shared.QueriesEmpty());
    }
  }

  // Last position that this thread's rows see, from position `first` on.
  __device__ __forceinline__ void LastSeen(const Item& item, int32_t first, int32_t (&last)[2]) const {
    const int32_t row = row0 + static_cast<int32_t>(threadIdx.x & 31) / 4;
    last[0] = item.place->PositionOf(args.a, row) - first;
    last[1] = item.place->PositionOf(args.a, row + 8) - first;
  }

  // An item's first scores, just taken, into weights.
  __device__ __forceinline__ void Begin(const Item& item) {
    const PrefillTile& tile = item.place->tile;
    const int32_t first = (tile.first_tile + tile.tiles - 1) * Shape::kCols;
    Clear(st);
    float alpha[2];
    int32_t last[2];
    LastSeen(item, first, last);
    Weigh<true, kCapped>(st, last, args.a, alpha);
    PackWeights<T>(st);
    if (tile.length < first + Shape::kCols) {
      RingCursor<kHeadDim> values = port.at;
      if (tile.tiles > 1) values.Advance();
      WaitFor(shared.Full(values.slot), values.phase);
      ZeroRows<kHeadDim>(shared.data + (shared.Tile(values.slot) - shared.base), tile.length - first);
      SyncNamed(kWarpgroupBarrier + group, 128);
    }
  }

  template <bool kMasked>
  __device__ __forceinline__ void Step(uint32_t q, const int32_t (&last)[2]) {
    float alpha[2];
    const uint32_t keys = port.NextSlot(), values = port.NextSlot();
    port.TakeTurn();
    Pin(st.o);
    Pin(st.p);
    WarpgroupFence();
    IssueScores<T>(st, q, shared.Tile(keys));
    IssueValues<T>(st, shared.Tile(values));
    port.PassTurn();
    WarpgroupWait<1>();
    Pin(st.s);
    port.Release(shared.Empty(keys));
    Weigh<kMasked, kCapped>(st, last, args.a, alpha);
    WarpgroupWait<0>();
    Pin(st.o);
    port.Release(shared.Empty(values));
    ScaleOutput(st, alpha);
    PackWeights<T>(st);
  }

  // All tiles of an item past its first; masked where a row does not see all of one.
  __device__ __forceinline__ void Steps(const Item& item) {
    const PrefillTile& tile = item.place->tile;
    const uint32_t q = port.Queries();
    int32_t left = tile.tiles - 1;
    const int32_t all_seen = item.place->PositionOf(args.a, group * 64);
    const int32_t unseen = item.place->PositionOf(args.a, group * 64 + 63) + 1 - args.a.window;
    const int32_t cut = max(0, (unseen + Shape::kCols - 1) / Shape::kCols - tile.first_tile);
    do {
      int32_t first = (tile.first_tile + left) * Shape::kCols;
      int32_t last[2];
      LastSeen(item, first, last);
      for (; left > 0 && (first - 1 > all_seen || left <= cut); --left) {
        first -= Shape::kCols;
        last[0] += Shape::kCols;
        last[1] += Shape::kCols;
        Step<true>(q, last);
      }
      for (; left > cut; --left) Step<false>(q, last);
    } while (left > 0);
  }

  // Output of an item whose values are all in.
  __device__ __forceinline__ void Finish(const Item& item) {
    const HopperPlace place = *item.place;
    SumQuad(st);
    if (place.tile.parts > 1) {
      if (row0 < place.RowsLeft(args.a)) FinishPart<T, kHeadDim>(st, args, place, row0);
    } else {
      WriteRows<T, kHeadDim>(st, args.a, place, row0);
    }
  }

  // From one item to the next in one turn; kDone, kNext: this warpgroup has rows in them.
  template <bool kDone, bool kNext>
  __device__ __forceinline__ void Cross(const Item& done, const Item& next) {
    FetchQueries<kNext>();
    const uint32_t values = port.NextSlot(), keys = port.NextSlot();
    port.TakeTurn();
    Pin(st.o);
    Pin(st.p);
    WarpgroupFence();
    if constexpr (kDone) IssueValues<T>(st, shared.Tile(values));
    if constexpr (kNext) IssueScores<T>(st, port.Queries(), shared.Tile(keys));
    port.PassTurn();
    if constexpr (kDone) {
      WarpgroupWait<kNext ? 1 : 0>();
      Pin(st.o);
    }
    port.Release(shared.Empty(values));
    if constexpr (kDone) Finish(done);
    if constexpr (kNext) {
      WarpgroupWait<0>();
      Pin(st.s);
    }
    port.Release(shared.Empty(keys));
    if constexpr (kNext) Begin(next);
  }

  __device__ __forceinline__ void First(const Item& item) {
    item.active ? FetchQueries<true>() : FetchQueries<false>();
    const uint32_t keys = port.NextSlot();
    if (item.active) {
      WarpgroupFence();
      IssueScores<T>(st, port.Queries(), shared.Tile(keys));
      WarpgroupWait<0>();
      Pin(st.s);
    }
    port.Release(shared.Empty(keys));
    if (item.active) Begin(item);
  }

  __device__ __forceinline__ void Last(const Item& item) {
    port.TakeTurn();
    port.PassTurn();
    if (!item.active) return;
    const uint32_t values = port.NextSlot();
    Pin(st.o);
    Pin(st.p);
    WarpgroupFence();
    IssueValues<T>(st, shared.Tile(values));
    WarpgroupWait<0>();
    Pin(st.o);
    Finish(item);
  }

  __device__ __forceinline__ void All() {
    if (group == 1) ArriveNamed(kTurnBarrier, 256);
    Item item = ItemAt(0);
    if (item.place->kv_head < 0) return;
    First(item);
    for (uint32_t i = 1;; ++i) {
      item.active ? Steps(item) : port.Pass(item.place->tile.tiles);
      if constexpr (!Shape::kQInRegisters) port.Release(shared.QueriesEmpty());
      const Item next = ItemAt(i);
      if (next.place->kv_head < 0) break;
      if (item.active) {
        next.active ? Cross<true, true>(item, next) : Cross<true, false>(item, next);
      } else {
        next.active ? Cross<false, true>(item, next) : Cross<false, false>(item, next);
      }
      item = next;
    }
    Last(item);
  }
};

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace fastllm::cuda
