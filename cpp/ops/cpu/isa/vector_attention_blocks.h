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

// Asks for the rows of a chunk of K and V, some lines at a time, while another chunk is computed with: blocks lie all
// over the cache, so that the hardware's own prefetch ends with each, and asking for all at once would stop the
// computation until most have come. Into the second-level cache: the first has too few places for lines on their way.
class Fetcher {
 public:
  void Start() {
    runs_ = 0;
    run_ = 0;
    at_ = 0;
  }
  // Positions [begin, end) of the item after those that are asked for already.
  void Add(const PagedAttentionParams& p, const AttentionItem& item, int32_t begin, int32_t end) {
    const KvCacheView& c = p.cache;
    const int64_t size = DTypeSize(c.dtype);
    const int64_t stride = KvBlockStride(c);
    const int32_t* table = p.block_table + static_cast<int64_t>(item.seq) * p.max_blocks;
    while (begin < end && runs_ < kRuns) {
      const int32_t row = begin % c.block_size;
      const int32_t rows = c.block_size - row < end - begin ? c.block_size - row : end - begin;
      const int64_t at =
          table[begin / c.block_size] * stride + (static_cast<int64_t>(item.kv_head) * c.block_size + row) * c.head_dim;
      k_[runs_] = static_cast<const char*>(c.k) + at * size;
      v_[runs_] = static_cast<const char*>(c.v) + at * size;
      bytes_[runs_++] = rows * c.head_dim * size;
      begin += rows;
    }
  }
  // The next `lines` of K and as many of V.
  void Step(int32_t lines) {
    while (lines > 0 && run_ < runs_) {
      for (; lines > 0 && at_ < bytes_[run_]; --lines, at_ += kCacheLine) {
        __builtin_prefetch(k_[run_] + at_, 0, 2);
        __builtin_prefetch(v_[run_] + at_, 0, 2);
      }
      if (at_ < bytes_[run_]) return;
      ++run_;
      at_ = 0;
    }
  }

 private:
  static constexpr int32_t kRuns = 8;  // blocks; with smaller ones the rest of a chunk is not asked for
  const char* k_[kRuns];
  const char* v_[kRuns];
  int64_t bytes_[kRuns];
  int64_t at_ = 0;
  int32_t run_ = 0;
  int32_t runs_ = 0;
};

// One past the last position that the item sees, and the chunk of the first.
inline int32_t EndPosition(const PagedAttentionParams& p, const AttentionItem& item) {
  const int32_t query_len = p.query_start[item.seq + 1] - p.query_start[item.seq];
  return p.seq_len[item.seq] - query_len + item.first_token + item.num_tokens;
}
inline int32_t FirstChunk(const PagedAttentionParams& p, const AttentionItem& item) {
  return FirstSeen(p.window, EndPosition(p, item) - item.num_tokens) / kAttentionChunk * kAttentionChunk;
}

// What the thread goes on with: this item up to position `end`, then `next`, or null.
struct Ahead {
  int32_t end;
  const AttentionItem* next;
};

// While n positions from `chunk` on are computed with, as many are asked for that come a chunk later, in this item or
// the next: the last chunk of an item is short, and what the next begins with would not come in its time. An item of
// one chunk asks for the next one's first whole.
inline void FetchAhead(const PagedAttentionParams& p, const AttentionItem& item, const Ahead& ahead, int32_t chunk,
                       int32_t n, Fetcher* fetcher) {
  fetcher->Start();
  const auto least = [](int32_t a, int32_t b) { return a < b ? a : b; };
  int32_t begin = chunk + kAttentionChunk;
  int32_t end = begin + n;
  if (begin < ahead.end) fetcher->Add(p, item, begin, least(end, ahead.end));
  if (ahead.next == nullptr || end <= ahead.end) return;
  begin = begin < ahead.end ? 0 : begin - ahead.end;
  end -= ahead.end;
  if (chunk + n == ahead.end && chunk <= FirstChunk(p, item)) begin = 0, end = kAttentionChunk;
  const int32_t first = FirstChunk(p, *ahead.next);
  fetcher->Add(p, *ahead.next, first + begin, least(first + end, EndPosition(p, *ahead.next)));
}

}  // namespace
}  // namespace fastllm::ops::cpu
