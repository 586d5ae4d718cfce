// Where the positions of an attention item lie in the paged cache.
#pragma once

#include "ops/cpu/isa/vector_kernels.h"

namespace fastllm::ops::cpu {
namespace {

// Offsets in the cache of positions [chunk + first, chunk + n), padded to [0, whole vectors) by repeating the ends.
inline void ChunkOffsets(const PagedAttentionParams& p, const AttentionItem& item, int32_t chunk, int32_t first,
                         int32_t n, int64_t* offset) {
  const KvCacheView& c = p.cache;
  const int32_t* table = p.block_table + static_cast<int64_t>(item.seq) * p.max_blocks;
  const int64_t stride = KvBlockStride(c);
  const int64_t head = static_cast<int64_t>(item.kv_head) * c.block_size * c.head_dim;
  int32_t j = first;
  int32_t block = (chunk + first) / c.block_size;
  int32_t row = (chunk + first) % c.block_size;
  while (j < n) {
    const int64_t base = table[block] * stride + head;
    for (; row < c.block_size && j < n; ++row, ++j) offset[j] = base + static_cast<int64_t>(row) * c.head_dim;
    ++block;
    row = 0;
  }
  for (; j % kLanes != 0; ++j) offset[j] = offset[n - 1];
  for (j = 0; j < first; ++j) offset[j] = offset[first];
}

// Asks for K and V of positions [begin, end) of the chunk that starts at `begin`: blocks lie all over the cache, so
// that the hardware's own prefetch ends with each.
inline void FetchChunk(const PagedAttentionParams& p, const AttentionItem& item, int32_t begin, int32_t end) {
  const KvCacheView& c = p.cache;
  if (end > begin + kAttentionChunk) end = begin + kAttentionChunk;
  const int64_t size = DTypeSize(c.dtype);
  const int32_t* table = p.block_table + static_cast<int64_t>(item.seq) * p.max_blocks;
  while (begin < end) {
    const int32_t row = begin % c.block_size;
    const int32_t rows = c.block_size - row < end - begin ? c.block_size - row : end - begin;
    const int64_t at = table[begin / c.block_size] * KvBlockStride(c) +
                       (static_cast<int64_t>(item.kv_head) * c.block_size + row) * c.head_dim;
    const char* k = static_cast<const char*>(c.k) + at * size;
    const char* v = static_cast<const char*>(c.v) + at * size;
    for (int64_t byte = 0; byte < rows * c.head_dim * size; byte += kCacheLine) {
      __builtin_prefetch(k + byte);
      __builtin_prefetch(v + byte);
    }
    begin += rows;
  }
}

}  // namespace
}  // namespace fastllm::ops::cpu
