// The prefill kernel for Hopper: the plan and rows of prefill.cuh, in one persistent block per multiprocessor. A
// producer warpgroup (hopper_produce.cuh) takes work items, fetches Q and streams K and V through rings of stages; two
// consumer warpgroups of 64 rows each take turns on the matrix units, so that one computes its softmax while the other
// multiplies, and within a warpgroup the softmax of a tile runs beside P V of the tile before (Shah et al.,
// FlashAttention-3, 2024). Tiles of an item go from its last column to its first, so that only the first ones mask.
#pragma once

#include "cuda/attention/hopper_finish.cuh"
#include "cuda/attention/hopper_produce.cuh"

namespace fastllm::cuda {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

template <typename T, int kHeadDim>
struct HopperConsumer {
  using Shape = HopperShape<kHeadDim>;
  const HopperArgs<T>& args;
  const HopperShared<kHeadDim>& shared;
  const uint32_t group;  // warpgroup, 0 or 1
  HopperState<kHeadDim> st;

  // This warp has read what it needs of a stage or a query buffer.
  __device__ __forceinline__ static void Release(uint32_t barrier) {
    if ((threadIdx.x & 31) == 0) ArriveAt(barrier);
  }

  __device__ __forceinline__ void Start(uint32_t q, uint32_t index, const int32_t (&last)[2]) {
#pragma unroll
    for (int i = 0; i < kHeadDim / 2; ++i) st.o[i] = 0.0f;
    st.m[0] = st.m[1] = -INFINITY;
    st.l[0] = st.l[1] = 0.0f;
    float alpha[2];
    WaitFor(shared.KeysFull(index), shared.Phase(index));
    WarpgroupFence();
    IssueScores<T>(st, q, shared.Keys(index));
    WarpgroupWait<0>();
    Pin(st.s);
    Release(shared.KeysEmpty(index));
    Weigh<true>(st, last, args.a.scale_log2, alpha);
    PackWeights<T>(st);
  }

  // Scores of tile `index` and the values of the one before it.
  template <bool kMasked>
  __device__ __forceinline__ void Step(uint32_t q, uint32_t index, const int32_t (&last)[2]) {
    float alpha[2];
    WaitFor(shared.KeysFull(index), shared.Phase(index));
    SyncNamed(kTurnBarrier + group, 256);
    Pin(st.o);
    Pin(st.p);
    WarpgroupFence();
    IssueScores<T>(st, q, shared.Keys(index));
    WaitFor(shared.ValuesFull(index - 1), shared.Phase(index - 1));
    IssueValues<T>(st, shared.Values(index - 1));
    ArriveNamed(kTurnBarrier + (group ^ 1), 256);
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

  __device__ __forceinline__ void LastValues(uint32_t index) {
    WaitFor(shared.ValuesFull(index), shared.Phase(index));
    Pin(st.o);
    Pin(st.p);
    WarpgroupFence();
    IssueValues<T>(st, shared.Values(index));
    WarpgroupWait<0>();
    Pin(st.o);
    Release(shared.ValuesEmpty(index));
  }

  // index: of the item's first tile in the rings.
  __device__ __forceinline__ void Rows(const HopperPlace& place, uint32_t index, uint32_t buffer) {
    constexpr int32_t kCols = Shape::kCols;
    const int row0 = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32 - 4, 0) * 16;
    const int32_t row = place.tile.first_row + row0 + static_cast<int32_t>(threadIdx.x & 31) / 4;
    const uint32_t q = shared.Queries(buffer) + group * (64 / 8 * Shape::kGroupBytes);
    const int32_t positions[2] = {place.PositionOf(row, args.a.group), place.PositionOf(row + 8, args.a.group)};
    const int32_t all_seen = place.PositionOf(place.tile.first_row + group * 64, args.a.group);
    int32_t left = place.tile.tiles - 1;
    int32_t first = (place.tile.first_tile + left) * kCols;
    int32_t last[2] = {positions[0] - first, positions[1] - first};
    Start(q, index, last);
    if (place.tile.length < first + kCols) {
      WaitFor(shared.ValuesFull(index), shared.Phase(index));
      ZeroRows<kHeadDim>(shared.data + (shared.Values(index) - shared.base), place.tile.length - first);
      SyncNamed(kWarpgroupBarrier + group, 128);
    }
    for (; left > 0 && first - 1 > all_seen; --left) {
      first -= kCols;
      last[0] += kCols;
      last[1] += kCols;
      Step<true>(q, ++index, last);
    }
    for (; left > 0; --left) Step<false>(q, ++index, last);
    LastValues(index);
    SumQuad(st);
    if (place.tile.parts > 1) {
      if (place.tile.first_row + row0 < place.Rows(args.a.group)) FinishPart<T, kHeadDim>(st, args, place, row0);
      return;
    }
    SyncNamed(kWarpgroupBarrier + group, 128);  // the other warps have read their queries
    WriteRows<T, kHeadDim>(st, args.a, place, shared.data + buffer * Shape::kQBytes, row0);
  }

  // The tiles of an item in which this warpgroup has no rows go past.
  __device__ __forceinline__ void Skip(const HopperPlace& place, uint32_t index) {
    for (int32_t i = 0; i < place.tile.tiles; ++i) {
      WaitFor(shared.KeysFull(index + i), shared.Phase(index + i));
      if (i > 0) {
        SyncNamed(kTurnBarrier + group, 256);
        ArriveNamed(kTurnBarrier + (group ^ 1), 256);
      }
      Release(shared.KeysEmpty(index + i));
      WaitFor(shared.ValuesFull(index + i), shared.Phase(index + i));
      Release(shared.ValuesEmpty(index + i));
    }
  }

  __device__ __forceinline__ void All() {
    constexpr int kQBuffers = Shape::kQBuffers;
    if (group == 1) ArriveNamed(kTurnBarrier, 256);
    uint32_t index = 0;
    for (uint32_t i = 0;; ++i) {
      const uint32_t buffer = i % kQBuffers;
      WaitFor(shared.QueriesFull(buffer), i / kQBuffers & 1);
      const HopperPlace place = *shared.Place(buffer);
      if (place.kv_head < 0) return;
      if (place.tile.first_row + static_cast<int32_t>(group) * 64 < place.Rows(args.a.group)) {
        Rows(place, index, buffer);
      } else {
        Skip(place, index);
      }
      index += place.tile.tiles;
      __syncwarp();
      Release(shared.QueriesEmpty(buffer));
    }
  }
};

template <int kHeadDim>
__device__ __forceinline__ void InitBarriers(const HopperShared<kHeadDim>& shared) {
  using Shape = HopperShape<kHeadDim>;
  for (uint32_t i = 0; i < Shape::kStages; ++i) {
    InitBarrier(shared.KeysFull(i), 1);
    InitBarrier(shared.ValuesFull(i), 1);
    InitBarrier(shared.KeysEmpty(i), kPrefillWarps);
    InitBarrier(shared.ValuesEmpty(i), kPrefillWarps);
  }
  for (uint32_t i = 0; i < Shape::kQBuffers; ++i) {
    InitBarrier(shared.QueriesFull(i), kQueryThreads);
    InitBarrier(shared.QueriesEmpty(i), kPrefillWarps);
  }
  FenceBarrierInit();
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

template <typename T, int kHeadDim>
__global__ void __launch_bounds__(HopperShape<kHeadDim>::kThreads, 1)
    HopperPrefillKernel(const __grid_constant__ HopperArgs<T> args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) char dynamic[];
  char* data = dynamic + (1024 - SharedAddress(dynamic) % 1024) % 1024;
  const HopperShared<kHeadDim> shared{data, SharedAddress(data)};
  if (threadIdx.x == 0) {
    PrefetchMap(&args.k_map);
    PrefetchMap(&args.v_map);
    InitBarriers(shared);
  }
  __syncthreads();
  const uint32_t group = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
  if (group == 0) {
    GiveRegisters<40>();
    Produce<T, kHeadDim>(args, shared);
  } else {
    TakeRegisters<232>();
    HopperConsumer<T, kHeadDim>{args, shared, group - 1, {}}.All();
  }
#else
  __trap();  // the launcher never picks it on other devices
#endif
}

}  // namespace fastllm::cuda
