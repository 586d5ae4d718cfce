// What the roles of the Hopper prefill kernel (prefill_hopper.cuh) share: arguments, the layout of shared memory and
// its barriers.
#pragma once

#include <cuda.h>

#include "cuda/attention/prefill_place.cuh"

namespace fastllm::cuda {

// Tiles of Q, K and V lie in shared memory as [row / 8][column block][row % 8][kAtom elements], the blocks swizzled as
// the matrix units and the copy engine want them: so a page, of any multiple of 8 rows, is one box of the copy engine
// and one piece of shared memory, and the same strides serve K (rows along n) and V (rows along k).
template <int kHeadDim>
struct HopperShape {
  static constexpr int kCols = PrefillCols(kHeadDim);
  static constexpr int kAtom = kHeadDim % 64 == 0 ? 64 : 32;  // elements of a column block
  static constexpr int kAtoms = kHeadDim / kAtom;
  static constexpr int kRowBytes = kAtom * 2;
  static constexpr int kAtomBytes = 8 * kRowBytes;
  static constexpr int kGroupBytes = kAtoms * kAtomBytes;  // 8 rows
  static constexpr int kQBytes = kPrefillRows / 8 * kGroupBytes;
  static constexpr int kTileBytes = kCols / 8 * kGroupBytes;
  static constexpr int kQBuffers = kHeadDim > 128 ? 1 : 2;
  static constexpr int kStages = 2;  // of K, and of V
  static constexpr int kPlaces = 4;  // the producer, held by the stages, is at most three items ahead
  static constexpr int kThreads = 384;
  static constexpr int kBarriers = 4 * kStages + 2 * kQBuffers;
  static constexpr int kBarrierOffset = kQBuffers * kQBytes + 2 * kStages * kTileBytes;
  static constexpr int kPlaceOffset = kBarrierOffset + kBarriers * 8;
  static constexpr int kPlaceBytes = 64;
  static constexpr int kSharedBytes = kPlaceOffset + kPlaces * kPlaceBytes + 1024;  // room to align

  // Where 16-byte chunk c of row r lies.
  static __device__ __forceinline__ uint32_t Offset(int r, int c) {
    constexpr int kChunks = kAtom / 8;
    const int swizzled = c % kChunks ^ (kAtom == 64 ? r & 7 : r / 2 & 3);
    return r / 8 * kGroupBytes + c / kChunks * kAtomBytes + (r & 7) * kRowBytes + swizzled * 16;
  }
};

template <typename T>
struct HopperArgs {
  CUtensorMap k_map;  // the cache as [rows / 8][column block][8][kAtom], a box being a page or a column tile
  CUtensorMap v_map;
  PrefillArgs<T> a;
  int32_t items;         // tiles * KV heads
  int32_t cache_groups;  // rows / 8 of the cache; a box from here on is zeros
  uint32_t* counters;    // of PrefillWorkspace
  float2* part_sums;     // [slot, row] max, sum
  float* part_out;       // [slot, row, head_dim]
};

// A work item as the producer hands it on; kv_head < 0 ends the kernel.
struct HopperPlace {
  PrefillTile tile;
  int32_t kv_head;
  int32_t unused[3];

  __device__ __forceinline__ int32_t Rows(int32_t group) const { return tile.query_len * group; }
  // Of a row's query token; rows past the end count as the last position.
  __device__ __forceinline__ int32_t PositionOf(int32_t row, int32_t group) const {
    return row < Rows(group) ? tile.length - tile.query_len + row / group : tile.length - 1;
  }
};
static_assert(sizeof(HopperPlace) == 64);

// Named barriers.
inline constexpr uint32_t kProducerBarrier = 1;
inline constexpr uint32_t kTurnBarrier = 2;       // + warpgroup
inline constexpr uint32_t kWarpgroupBarrier = 4;  // + warpgroup

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Addresses in shared memory. A ring index counts tiles from the start of the kernel.
template <int kHeadDim>
struct HopperShared {
  using Shape = HopperShape<kHeadDim>;
  char* data;
  uint32_t base;

  __device__ __forceinline__ static uint32_t Stage(uint32_t index) { return index % Shape::kStages; }
  __device__ __forceinline__ static uint32_t Phase(uint32_t index) { return index / Shape::kStages & 1; }
  __device__ __forceinline__ uint32_t Barrier(uint32_t i) const { return base + Shape::kBarrierOffset + i * 8; }
  __device__ __forceinline__ uint32_t KeysFull(uint32_t index) const { return Barrier(Stage(index)); }
  __device__ __forceinline__ uint32_t KeysEmpty(uint32_t index) const { return Barrier(Shape::kStages + Stage(index)); }
  __device__ __forceinline__ uint32_t ValuesFull(uint32_t index) const {
    return Barrier(2 * Shape::kStages + Stage(index));
  }
  __device__ __forceinline__ uint32_t ValuesEmpty(uint32_t index) const {
    return Barrier(3 * Shape::kStages + Stage(index));
  }
  __device__ __forceinline__ uint32_t QueriesFull(uint32_t buffer) const {
    return Barrier(4 * Shape::kStages + buffer);
  }
  __device__ __forceinline__ uint32_t QueriesEmpty(uint32_t buffer) const {
    return Barrier(4 * Shape::kStages + Shape::kQBuffers + buffer);
  }
  __device__ __forceinline__ uint32_t Queries(uint32_t buffer) const { return base + buffer * Shape::kQBytes; }
  __device__ __forceinline__ uint32_t Keys(uint32_t index) const {
    return base + Shape::kQBuffers * Shape::kQBytes + Stage(index) * Shape::kTileBytes;
  }
  __device__ __forceinline__ uint32_t Values(uint32_t index) const {
    return Keys(index) + Shape::kStages * Shape::kTileBytes;
  }
  // Of the kernel's item i.
  __device__ __forceinline__ HopperPlace* Place(uint32_t i) const {
    return reinterpret_cast<HopperPlace*>(data + Shape::kPlaceOffset + i % Shape::kPlaces * Shape::kPlaceBytes);
  }
};

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace fastllm::cuda
