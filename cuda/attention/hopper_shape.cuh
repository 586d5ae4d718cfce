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
  // A warpgroup keeps its rows of Q in registers where there is room; that spares shared memory a third of its reads.
  static constexpr bool kQInRegisters = kHeadDim <= 128;
  static constexpr int kPlaces = 4;  // Q of item i waits until the consumers are done with item i - 2
  static constexpr int kPlaceBytes = 64;
  static constexpr int kMiscBytes = 1024;  // barriers, places
  static constexpr int kRoom = 227 * 1024 - 1024 - kMiscBytes - kQBytes;
  static constexpr int kSlots = kRoom / kTileBytes < 8 ? kRoom / kTileBytes : 8;  // of the ring of K and V tiles
  static constexpr int kThreads = 384;
  static constexpr int kPlaceOffset = kQBytes + kSlots * kTileBytes;
  static constexpr int kBarrierOffset = kPlaceOffset + kPlaces * kPlaceBytes;
  static constexpr int kSharedBytes = kPlaceOffset + kMiscBytes + 1024;  // room to align

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
  int32_t items;              // tiles of the record * KV heads
  const int32_t* used_tiles;  // those with work, the first ones
  int32_t cache_groups;       // rows / 8 of the cache; a box from here on is zeros
  uint32_t* counters;         // of PrefillWorkspace
  float2* part_sums;          // [slot, row] max, sum
  float* part_out;            // [slot, row, head_dim]
};

// A work item as the producer hands it on; kv_head < 0 ends the kernel.
struct HopperPlace {
  PrefillTile tile;
  int32_t kv_head;
  int32_t unseen;  // positions that no row sees
  int32_t unused[2];

  // Of this sequence, from the tile's first on.
  template <typename T>
  __device__ __forceinline__ int32_t RowsLeft(const PrefillArgs<T>& a) const {
    return tile.query_len * a.group - tile.first_row;
  }
  // Of the query token of the tile's row r; rows past the end count as the last position.
  template <typename T>
  __device__ __forceinline__ int32_t PositionOf(const PrefillArgs<T>& a, int32_t r) const {
    const int32_t token = r < RowsLeft(a) ? a.TokenOf(tile.first_row + r) : tile.query_len - 1;
    return tile.length - tile.query_len + token;
  }
};
static_assert(sizeof(HopperPlace) == 64);

// Named barriers.
inline constexpr uint32_t kTurnBarrier = 2;       // + warpgroup
inline constexpr uint32_t kWarpgroupBarrier = 4;  // + warpgroup

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// A place in the ring. Tiles of an item follow in the order of their use: K of the first, then K of tile t and V of
// tile t - 1, then V of the last.
template <int kHeadDim>
struct RingCursor {
  uint32_t slot = 0;
  uint32_t phase = 0;

  __device__ __forceinline__ void Advance() {
    if (++slot == HopperShape<kHeadDim>::kSlots) {
      slot = 0;
      phase ^= 1;
    }
  }
};

// Addresses in shared memory.
template <int kHeadDim>
struct HopperShared {
  using Shape = HopperShape<kHeadDim>;
  char* data;
  uint32_t base;

  __device__ __forceinline__ uint32_t Barrier(uint32_t i) const { return base + Shape::kBarrierOffset + i * 8; }
  __device__ __forceinline__ uint32_t Full(uint32_t slot) const { return Barrier(slot); }
  __device__ __forceinline__ uint32_t Empty(uint32_t slot) const { return Barrier(Shape::kSlots + slot); }
  __device__ __forceinline__ uint32_t QueriesFull() const { return Barrier(2 * Shape::kSlots); }
  __device__ __forceinline__ uint32_t QueriesEmpty() const { return Barrier(2 * Shape::kSlots + 1); }
  // Of the kernel's item i: the place is written; the producer is about to need the item after it.
  __device__ __forceinline__ uint32_t PlaceFull(uint32_t i) const {
    return Barrier(2 * Shape::kSlots + 2 + i % Shape::kPlaces);
  }
  __device__ __forceinline__ uint32_t Wanted() const { return Barrier(2 * Shape::kSlots + 2 + Shape::kPlaces); }
  __device__ __forceinline__ uint32_t Queries() const { return base; }
  __device__ __forceinline__ uint32_t Tile(uint32_t slot) const {
    return base + Shape::kQBytes + slot * Shape::kTileBytes;
  }
  // Of the kernel's item i.
  __device__ __forceinline__ HopperPlace* Place(uint32_t i) const {
    return reinterpret_cast<HopperPlace*>(data + Shape::kPlaceOffset + i % Shape::kPlaces * Shape::kPlaceBytes);
  }
};

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace fastllm::cuda
