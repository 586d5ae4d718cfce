// Attention's views of the KV cache: how the chunks of a float32 or 16-bit cache meet the rows of a tile.
#pragma once

#include "ops/cpu/isa/vector_attention_blocks.h"
#include "ops/cpu/isa/vector_attention_tiles.h"
#include "ops/cpu/isa/vector_narrow.h"

namespace fastllm::ops::cpu {
namespace {

// Positions of the chunk at `chunk` that `row` sees.
inline int32_t Visible(const Tile& t, int32_t row, int32_t chunk) {
  const int32_t n = t.first_pos + row / t.group + 1 - chunk;
  return n < kAttentionChunk ? n : kAttentionChunk;
}

// Positions of the chunk that are before the row's window.
inline int32_t Hidden(const Tile& t, int32_t row, int32_t chunk) {
  const int32_t n = FirstSeen(t.window, t.first_pos + row / t.group) - chunk;
  return n > 0 ? n : 0;
}

// R rows together up to the last position that all of them see, then each on its own.
template <int R>
inline void ValueBlock(const Tile& t, int32_t row, const float* v, const int64_t* offset, int32_t chunk) {
  const int32_t common = Visible(t, row, chunk);
  ValueRows<R>(t, row, v, offset, 0, common);
  for (int r = 1; r < R; ++r) ValueRows<1>(t, row + r, v, offset, common, Visible(t, row + r, chunk));
}

inline void Values(const Tile& t, const float* v, const int64_t* offset, int32_t chunk) {
  int32_t r = 0;
  for (; r + kMaxRows <= t.rows; r += kMaxRows) ValueBlock<kMaxRows>(t, r, v, offset, chunk);
  const int32_t left = t.rows - r;
  if (left == 3) ValueBlock<3>(t, r, v, offset, chunk);
  if (left == 2) ValueBlock<2>(t, r, v, offset, chunk);
  if (left == 1) ValueBlock<1>(t, r, v, offset, chunk);
}

// How a chunk of the cache is read. Each kind has
//   Chunk(p, t, offset, n, fetcher)  what a chunk of n positions needs before the next two, the fetcher's steps in
//                                    between; offset may change
// and, for some rows of the tile,
//   Scores(t, offset, n)             t.scores against the first n positions
//   Values(t, offset, chunk)         adds weights times V to the accumulators
//   Softmax(t, chunk)                where kOwnSoftmax says so; else cpu::Softmax makes weights of t.scores
struct FloatCache {
  static constexpr bool kOwnSoftmax = false;
  const float* k;
  const float* v;
  FloatCache(const PagedAttentionParams& p, const Tile&)
      : k(static_cast<const float*>(p.cache.k)), v(static_cast<const float*>(p.cache.v)) {}
  void Chunk(const PagedAttentionParams&, const Tile&, int64_t*, int32_t, Fetcher&) {}
  void Scores(const Tile& t, const int64_t* offset, int32_t n) const { cpu::Scores(t, k, offset, n); }
  void Values(const Tile& t, const int64_t* offset, int32_t chunk) const { cpu::Values(t, v, offset, chunk); }
};

// K and V of 16 or 8 bits, widened a chunk at a time; from there as FloatCache.
struct WidenedCache {
  static constexpr bool kOwnSoftmax = false;
  float* k;
  float* v;
  explicit WidenedCache(const Tile& t) : k(t.wide), v(t.wide + static_cast<int64_t>(kAttentionChunk) * t.dim) {}
  void Scores(const Tile& t, const int64_t* offset, int32_t n) const { cpu::Scores(t, k, offset, n); }
  void Values(const Tile& t, const int64_t* offset, int32_t chunk) const { cpu::Values(t, v, offset, chunk); }
};

template <Vec (*kLoad)(const uint16_t*)>
struct NarrowCache : WidenedCache {
  NarrowCache(const PagedAttentionParams&, const Tile& t) : WidenedCache(t) {}
  void Chunk(const PagedAttentionParams& p, const Tile& t, int64_t* offset, int32_t n, Fetcher& fetcher) {
    const auto* from_k = static_cast<const uint16_t*>(p.cache.k);
    const auto* from_v = static_cast<const uint16_t*>(p.cache.v);
    for (int32_t j = 0; j < n; ++j) {
      fetcher.Step(2);
      Widen<kLoad>(from_k + offset[j], t.dim, k + static_cast<int64_t>(j) * t.dim);
      Widen<kLoad>(from_v + offset[j], t.dim, v + static_cast<int64_t>(j) * t.dim);
      offset[j] = static_cast<int64_t>(j) * t.dim;
    }
    for (int32_t j = n; j % kLanes != 0; ++j) offset[j] = offset[n - 1];
  }
};

struct ByteCache : WidenedCache {
  ByteCache(const PagedAttentionParams&, const Tile& t) : WidenedCache(t) {}
  void Chunk(const PagedAttentionParams& p, const Tile& t, int64_t* offset, int32_t n, Fetcher& fetcher) {
    const auto* from_k = static_cast<const int8_t*>(p.cache.k);
    const auto* from_v = static_cast<const int8_t*>(p.cache.v);
    for (int32_t j = 0; j < n; ++j) {
      fetcher.Step(1);
      const int64_t row = offset[j] / t.dim;
      const int64_t to = static_cast<int64_t>(j) * t.dim;
      WidenBytes(from_k + offset[j], t.dim, p.cache.k_row_scales[row], k + to);
      WidenBytes(from_v + offset[j], t.dim, p.cache.v_row_scales[row], v + to);
      offset[j] = to;
    }
    for (int32_t j = n; j % kLanes != 0; ++j) offset[j] = offset[n - 1];
  }
};

#ifndef FASTLLM_BFLOAT_CACHE
using BFloatCache = NarrowCache<LoadBF16>;
#endif

}  // namespace
}  // namespace fastllm::ops::cpu
