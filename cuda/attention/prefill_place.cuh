// What the prefill kernels (prefill.cuh, prefill_hopper.cuh) share: arguments, and what a block knows of its tile; and
// the copies of the first.
#pragma once

#include "cuda/attention/decode_stream.cuh"
#include "cuda/attention/plan.h"
#include "cuda/common/mma.cuh"

namespace fastllm::cuda {

template <typename T>
struct PrefillArgs {
  const T* q;
  T* out;
  const void* k;  // of T or fp8, as the kernel is made for
  const void* v;
  const int32_t* block_table;
  const PrefillTile* tiles;
  int64_t q_stride;
  int64_t out_stride;
  int32_t max_blocks;
  int32_t kv_heads;
  int32_t group;
  uint32_t group_magic;  // MagicOf(group)
  int32_t block_shift;
  float scale_log2;   // scale * log2(e); with a soft cap, cap * log2(e)
  float cap_inverse;  // scale / cap, or 0
  int32_t window;     // kNoWindow: none
  float value_scale;  // v_scale of an fp8 cache, else 1; its k_scale is in `scale` above

  // row / group, for rows of up to 2^32 / group.
  __device__ __forceinline__ int32_t TokenOf(int32_t row) const {
    return group == 1 ? row : static_cast<int32_t>(__umulhi(static_cast<uint32_t>(row), group_magic));
  }
};

// Rounded up, so that the high half of n * magic is n / group.
inline uint32_t MagicOf(int32_t group) {
  return static_cast<uint32_t>(((uint64_t{1} << 32) + group - 1) / static_cast<uint64_t>(group));
}

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
  int32_t token0;  // first query token of the sequence in q and out
  int32_t rows;    // of the sequence: query_len * group
  int32_t kv_head;
  int32_t position;  // of the sequence's first query token
  int32_t unseen;    // positions that no row sees

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

// One tile of K (or V) from position `first` on; zeros before the window and past the end of the sequence. fp8 goes as
// it is, row after row.
template <typename T, typename KV, int kHeadDim>
__device__ __forceinline__ void LoadKeys(const PrefillArgs<T>& a, const PrefillPlace& place, const int32_t* table,
                                         int32_t first, uint32_t shared) {
  using Shape = PrefillShape<kHeadDim>;
  constexpr bool kBytes = sizeof(KV) == 1;
  constexpr int kElements = 16 / sizeof(KV);
  constexpr int kChunks = kHeadDim / kElements;
#pragma unroll
  for (int i = 0; i < Shape::kCols * kChunks / Shape::kThreads; ++i) {
    const int chunk = i * Shape::kThreads + threadIdx.x;
    const int r = chunk / kChunks;
    const int c = chunk % kChunks;
    const int32_t position = first + r;
    const bool valid = position < place.tile.length && position >= place.unseen;
    const int64_t page = valid ? __ldg(table + (position >> a.block_shift)) : 0;
    const int32_t row = position & ((1 << a.block_shift) - 1);
    const int64_t from = ((((page * a.kv_heads + place.kv_head) << a.block_shift) + row)) * kHeadDim + c * kElements;
    const uint32_t to = shared + (kBytes ? chunk * 16 : TileOffset<kHeadDim>(r, c));
    CopyAsync16(to, static_cast<const KV*>(a.k) + from, valid);
    CopyAsync16(to + (kBytes ? Shape::kTileBytes / 2 : Shape::kTileBytes), static_cast<const KV*>(a.v) + from, valid);
  }
}

// A tile of K and one of V, as LoadKeys left them in fp8, as T.
template <typename T, int kHeadDim>
__device__ __forceinline__ void WidenKeys(const char* from, char* to) {
  using Shape = PrefillShape<kHeadDim>;
  constexpr int kChunks = kHeadDim / 16;
#pragma unroll 2
  for (int i = threadIdx.x; i < 2 * Shape::kCols * kChunks; i += Shape::kThreads) {
    const uint4 codes = *reinterpret_cast<const uint4*>(from + i * 16);
    const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
    const int row = i / kChunks % Shape::kCols;
    char* const tile = to + (i < Shape::kCols * kChunks ? 0 : Shape::kTileBytes);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t a = words[2 * half], b = words[2 * half + 1];
      *reinterpret_cast<uint4*>(tile + TileOffset<kHeadDim>(row, i % kChunks * 2 + half)) = make_uint4(
          UnpackTwoFp8<T>(a & 0xffff), UnpackTwoFp8<T>(a >> 16), UnpackTwoFp8<T>(b & 0xffff), UnpackTwoFp8<T>(b >> 16));
    }
  }
}

}  // namespace fastllm::cuda
