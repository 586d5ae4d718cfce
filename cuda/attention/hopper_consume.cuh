// The consumer warpgroups of the Hopper prefill kernel.
#pragma once

#include "cuda/attention/hopper_finish.cuh"
#include "cuda/common/tma.cuh"

namespace fastllm::cuda {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// One of the two consumer warpgroups. Every column tile but the kernel's first is one turn on the matrix units: the
// scores of the tile and the values of the tile before it, be they of one item or of two.
template <typename T, int kHeadDim>
struct HopperConsumer {
  using Shape = HopperShape<kHeadDim>;
  const HopperArgs<T>& args;
  const HopperShared<kHeadDim>& shared;
  const uint32_t group;  // warpgroup, 0 or 1
  const int row0;        // of this warp, in a tile's rows
  HopperState<kHeadDim> st;
  uint32_t index;  // in the rings, of the tile whose scores were last taken

  // A work item; place is in shared memory.
  struct Item {
    const HopperPlace* place;
    uint32_t buffer;
    bool active;  // this warpgroup has rows in it
  };

  __device__ __forceinline__ Item ItemAt(uint32_t i) const {
    const uint32_t buffer = i % Shape::kQBuffers;
    WaitFor(shared.QueriesFull(buffer), i / Shape::kQBuffers & 1);
    const HopperPlace* place = shared.Place(i);
    return {place, buffer, place->tile.first_row + static_cast<int32_t>(group) * 64 < place->Rows(args.a.group)};
  }
  __device__ __forceinline__ uint32_t Queries(const Item& item) const {
    return shared.Queries(item.buffer) + group * (64 / 8 * Shape::kGroupBytes);
  }

  // This warp has read what it needs of a stage or a query buffer.
  __device__ __forceinline__ static void Release(uint32_t barrier) {
    if ((threadIdx.x & 31) == 0) ArriveAt(barrier);
  }
  __device__ __forceinline__ void WaitKeys() const { WaitFor(shared.KeysFull(index), shared.Phase(index)); }
  __device__ __forceinline__ void WaitValues(uint32_t i) const { WaitFor(shared.ValuesFull(i), shared.Phase(i)); }
  __device__ __forceinline__ void TakeTurn() const { SyncNamed(kTurnBarrier + group, 256); }
  __device__ __forceinline__ void PassTurn() const { ArriveNamed(kTurnBarrier + (group ^ 1), 256); }

  // Last position that this thread's rows see, from position `first` on.
  __device__ __forceinline__ void LastSeen(const Item& item, int32_t first, int32_t (&last)[2]) const {
    const int32_t row = item.place->tile.first_row + row0 + static_cast<int32_t>(threadIdx.x & 31) / 4;
    last[0] = item.place->PositionOf(row, args.a.group) - first;
    last[1] = item.place->PositionOf(row + 8, args.a.group) - first;
  }

  // An item's first scores, just taken, into weights.
  __device__ __forceinline__ void Begin(const Item& item) {
    const PrefillTile& tile = item.place->tile;
    const int32_t first = (tile.first_tile + tile.tiles - 1) * Shape::kCols;
#pragma unroll
    for (int i = 0; i < kHeadDim / 2; ++i) st.o[i] = 0.0f;
    st.m[0] = st.m[1] = -INFINITY;
    st.l[0] = st.l[1] = 0.0f;
    float alpha[2];
    int32_t last[2];
    LastSeen(item, first, last);
    Weigh<true>(st, last, args.a.scale_log2, alpha);
    PackWeights<T>(st);
    if (tile.length < first + Shape::kCols) {
      WaitValues(index);
      ZeroRows<kHeadDim>(shared.data + (shared.Values(index) - shared.base), tile.length - first);
      SyncNamed(kWarpgroupBarrier + group, 128);
    }
  }

  template <bool kMasked>
  __device__ __forceinline__ void Step(uint32_t q, const int32_t (&last)[2]) {
    float alpha[2];
    ++index;
    WaitKeys();
    WaitValues(index - 1);
    TakeTurn();
    Pin(st.o);
    Pin(st.p);
    WarpgroupFence();
    IssueScores<T>(st, q, shared.Keys(index));
    IssueValues<T>(st, shared.Values(index - 1));
    PassTurn();
    WarpgroupWait<1>();
    Pin(st.s);
    Release(shared.KeysEmpty(index));
    Weigh<kMasked>(st, last, args.a.scale_log2, alpha);
    WarpgroupWait<0>();
    Pin(st.o);
    Release(shared.ValuesEmpty(index - 1));
    ScaleOutput(st, alpha);
    PackWeights<T>(st);
  }

  // All tiles of an item past its first.
  __device__ __forceinline__ void Steps(const Item& item) {
    const PrefillTile& tile = item.place->tile;
    const uint32_t q = Queries(item);
    int32_t left = tile.tiles - 1;
    int32_t first = (tile.first_tile + left) * Shape::kCols;
    const int32_t all_seen = item.place->PositionOf(tile.first_row + group * 64, args.a.group);
    int32_t last[2];
    LastSeen(item, first, last);
    for (; left > 0 && first - 1 > all_seen; --left) {
      first -= Shape::kCols;
      last[0] += Shape::kCols;
      last[1] += Shape::kCols;
      Step<true>(q, last);
    }
    for (; left > 0; --left) Step<false>(q, last);
  }

  // The same where this warpgroup has no rows: the tiles go past.
  __device__ __forceinline__ void Pass(const Item& item) {
    for (int32_t left = item.place->tile.tiles - 1; left > 0; --left) {
      ++index;
      WaitKeys();
      TakeTurn();
      PassTurn();
      Release(shared.KeysEmpty(index));
      WaitValues(index - 1);
      Release(shared.ValuesEmpty(index - 1));
    }
  }

  // Output of an item whose values are all in.
  __device__ __forceinline__ void Finish(const Item& item) {
    const HopperPlace place = *item.place;
    SumQuad(st);
    if (place.tile.parts > 1) {
      if (place.tile.first_row + row0 < place.Rows(args.a.group)) FinishPart<T, kHeadDim>(st, args, place, row0);
    } else {
      WriteRows<T, kHeadDim>(st, args.a, place, row0);
    }
  }

  // From one item to the next in one turn; kDone, kNext: this warpgroup has rows in them.
  template <bool kDone, bool kNext>
  __device__ __forceinline__ void Cross(const Item& done, const Item& next) {
    ++index;
    WaitKeys();
    WaitValues(index - 1);
    TakeTurn();
    Pin(st.o);
    Pin(st.p);
    WarpgroupFence();
    if constexpr (kDone) IssueValues<T>(st, shared.Values(index - 1));
    if constexpr (kNext) IssueScores<T>(st, Queries(next), shared.Keys(index));
    PassTurn();
    if constexpr (kDone) {
      WarpgroupWait<kNext ? 1 : 0>();
      Pin(st.o);
    }
    Release(shared.ValuesEmpty(index - 1));
    if constexpr (kDone) Finish(done);
    if constexpr (kNext) {
      WarpgroupWait<0>();
      Pin(st.s);
    }
    Release(shared.KeysEmpty(index));
    if constexpr (kNext) Begin(next);
  }

  __device__ __forceinline__ void First(const Item& item) {
    WaitKeys();
    if (item.active) {
      WarpgroupFence();
      IssueScores<T>(st, Queries(item), shared.Keys(index));
      WarpgroupWait<0>();
      Pin(st.s);
    }
    Release(shared.KeysEmpty(index));
    if (item.active) Begin(item);
  }

  __device__ __forceinline__ void Last(const Item& item) {
    TakeTurn();
    PassTurn();
    if (!item.active) return;
    WaitValues(index);
    Pin(st.o);
    Pin(st.p);
    WarpgroupFence();
    IssueValues<T>(st, shared.Values(index));
    WarpgroupWait<0>();
    Pin(st.o);
    Finish(item);
  }

  __device__ __forceinline__ void All() {
    if (group == 1) ArriveNamed(kTurnBarrier, 256);
    index = 0;
    Item item = ItemAt(0);
    if (item.place->kv_head < 0) return;
    First(item);
    for (uint32_t i = 1;; ++i) {
      item.active ? Steps(item) : Pass(item);
      Release(shared.QueriesEmpty(item.buffer));
      const Item next = ItemAt(i);
      if (next.place->kv_head < 0) break;
      if (item.active && next.active) {
        Cross<true, true>(item, next);
      } else if (item.active) {
        Cross<true, false>(item, next);
      } else if (next.active) {
        Cross<false, true>(item, next);
      } else {
        Cross<false, false>(item, next);
      }
      item = next;
    }
    Last(item);
  }
};

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace fastllm::cuda
