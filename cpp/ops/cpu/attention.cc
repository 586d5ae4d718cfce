// Splits ragged paged attention into items of one sequence, one KV head and a tile of query tokens, and gives them to
// the threads, the costly ones first.
#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "core/base/check.h"
#include "ops/cpu/drive.h"
#include "ops/cpu/parallel.h"

namespace fastllm::ops::cpu {
namespace {

// Query rows (tokens x heads of a group) that share one pass over K and V. Enough to pay for the loads, few enough for
// queries, weights and accumulators to stay in the first-level cache next to a chunk of K.
constexpr int32_t kTileRows = 48;

struct CostedItem {
  AttentionItem item;
  int64_t cost;  // row-position pairs
};

// What one calling thread keeps between calls, so that a step allocates nothing once it is warm.
struct Workspace {
  std::vector<CostedItem> items;
  std::vector<float> scratch;
};

int64_t ScratchFloats(int64_t rows, int32_t head_dim) {
  const int64_t stride = (head_dim + kAttentionPad - 1) / kAttentionPad * kAttentionPad;
  const int64_t n = rows * (2 * stride + kAttentionChunk + 2);
  return (n + 15) / 16 * 16;
}

void CheckShapes(const PagedAttentionParams& p) {
  const KvCacheView& c = p.cache;
  FASTLLM_CHECK(c.num_kv_heads > 0 && c.block_size > 0 && c.head_dim > 0, "paged_attention: empty cache shape");
  FASTLLM_CHECK(p.num_q_heads % c.num_kv_heads == 0, "paged_attention: " + std::to_string(p.num_q_heads) +
                                                         " query heads are no multiple of " +
                                                         std::to_string(c.num_kv_heads) + " KV heads");
}

// Fills items and returns the cost of all.
int64_t BuildItems(const PagedAttentionParams& p, std::vector<CostedItem>& items) {
  const int32_t group = p.num_q_heads / p.cache.num_kv_heads;
  const int32_t tile = std::max(1, kTileRows / group);
  const int64_t capacity = static_cast<int64_t>(p.max_blocks) * p.cache.block_size;
  int64_t total = 0;
  items.clear();
  for (int32_t s = 0; s < p.num_seqs; ++s) {
    const int32_t query_len = p.query_start[s + 1] - p.query_start[s];
    if (query_len <= 0) continue;
    FASTLLM_CHECK(p.seq_len[s] >= query_len && p.seq_len[s] <= capacity,
                  "paged_attention: sequence " + std::to_string(s) + " has length " + std::to_string(p.seq_len[s]) +
                      ", outside [" + std::to_string(query_len) + ", " + std::to_string(capacity) + "]");
    const int32_t before = p.seq_len[s] - query_len;
    for (int32_t first = 0; first < query_len; first += tile) {
      const int32_t n = std::min(tile, query_len - first);
      const int64_t cost = (int64_t{before} + first + (n + 1) / 2) * n * group;
      for (int32_t h = 0; h < p.cache.num_kv_heads; ++h) items.push_back({{s, h, first, n}, cost});
      total += cost * p.cache.num_kv_heads;
    }
  }
  return total;
}

}  // namespace

void RunAttention(const Kernels& k, const PagedAttentionParams& p, const OpContext& ctx) {
  thread_local Workspace ws;
  CheckShapes(p);
  const int64_t cost = BuildItems(p, ws.items);
  // About 12 elements of head_dim a nanosecond, for the products with K and V together.
  const int32_t team = TeamSize(static_cast<int64_t>(ws.items.size()), cost * p.cache.head_dim / 12, ctx.num_threads);
  if (team > 1) {
    std::stable_sort(ws.items.begin(), ws.items.end(),
                     [](const CostedItem& a, const CostedItem& b) { return a.cost > b.cost; });
  }
  const int32_t group = p.num_q_heads / p.cache.num_kv_heads;
  const int64_t floats = ScratchFloats(std::max(kTileRows, group), p.cache.head_dim);
  ws.scratch.resize(static_cast<size_t>(floats * team + 16));
  // To a cache line, so that threads do not share one.
  const auto misaligned = reinterpret_cast<uintptr_t>(ws.scratch.data()) % 64 / sizeof(float);
  float* scratch = ws.scratch.data() + (misaligned == 0 ? 0 : 16 - misaligned);
  const CostedItem* items = ws.items.data();
  ParallelItems(static_cast<int64_t>(ws.items.size()), team,
                [&](int64_t i, int32_t thread) { k.attention(p, items[i].item, scratch + floats * thread); });
}

}  // namespace fastllm::ops::cpu
