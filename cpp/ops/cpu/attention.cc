// Splits ragged paged attention into items of one sequence, one KV head and a tile of query tokens, and gives them to
// the threads, the costly ones first. When there are too few items to go round (a long decode row has one for each KV
// head), their positions are split as well; results do not depend on it, see kAttentionSplit.
#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "core/base/check.h"
#include "ops/cpu/drive.h"
#include "ops/cpu/parallel.h"

namespace fastllm::ops::cpu {
namespace {

// Query rows (tokens x heads of a group) that share one pass over K and V: a chunk of either is read and rearranged
// once for all of them. Fewer where there would not be enough tiles to go round; results do not depend on it.
constexpr int32_t kTileRows = 192;
constexpr int32_t kLeastTileRows = 48;

// Items per thread from which on the threads are busy without splitting positions.
constexpr int64_t kItemsPerThread = 4;
// Floats of sums that splits may take.
constexpr int64_t kMaxSums = int64_t{1} << 23;

struct CostedItem {
  AttentionItem item;
  int64_t cost;         // row-position pairs
  int32_t first_split;  // of its positions
  int32_t splits;
  int64_t sums;  // where its sums start, when positions are split
};

// What one thread does at a time: some items, or one split of one.
struct Unit {
  int32_t item;  // the first
  int32_t count;
  int32_t split;  // -1: all; else counted from the sequence's first position
  int64_t cost;
};

// What one calling thread keeps between calls, so that a step allocates nothing once it is warm.
struct Workspace {
  std::vector<CostedItem> items;
  std::vector<Unit> units;
  std::vector<float> scratch;
  std::vector<float> sums;
};

int64_t RoundUp16(int64_t n) { return (n + 15) / 16 * 16; }

int64_t Stride(int32_t head_dim) { return (head_dim + kAttentionPad - 1) / kAttentionPad * kAttentionPad; }

int64_t ScratchFloats(int64_t rows, int32_t head_dim) {
  return RoundUp16(rows * (3 * Stride(head_dim) + kAttentionChunk + 4) + WideFloats(rows, Stride(head_dim)));
}

int64_t SumsFloats(const PagedAttentionParams& p, const AttentionItem& item) {
  return RoundUp16(int64_t{item.num_tokens} * (p.num_q_heads / p.cache.num_kv_heads) * (Stride(p.cache.head_dim) + 2));
}

// n floats that start a cache line, so that threads do not share one.
float* Aligned(std::vector<float>& v, int64_t n) {
  if (v.size() < static_cast<size_t>(n + 16)) v.resize(static_cast<size_t>(n + 16));
  const auto misaligned = reinterpret_cast<uintptr_t>(v.data()) % 64 / sizeof(float);
  return v.data() + (misaligned == 0 ? 0 : 16 - misaligned);
}

void CheckShapes(const PagedAttentionParams& p) {
  const KvCacheView& c = p.cache;
  FASTLLM_CHECK(c.num_kv_heads > 0 && c.block_size > 0 && c.head_dim > 0, "paged_attention: empty cache shape");
  FASTLLM_CHECK(p.num_q_heads % c.num_kv_heads == 0, "paged_attention: " + std::to_string(p.num_q_heads) +
                                                         " query heads are no multiple of " +
                                                         std::to_string(c.num_kv_heads) + " KV heads");
}

// Query tokens of a tile.
int32_t TileTokens(const PagedAttentionParams& p, int32_t threads) {
  const int32_t group = p.num_q_heads / p.cache.num_kv_heads;
  for (int32_t rows = kTileRows; rows > kLeastTileRows; rows /= 2) {
    const int32_t tile = std::max(1, rows / group);
    int64_t tiles = 0;
    for (int32_t s = 0; s < p.num_seqs; ++s) tiles += (p.query_start[s + 1] - p.query_start[s] + tile - 1) / tile;
    if (tiles >= kItemsPerThread * threads) return tile;
  }
  return std::max(1, kLeastTileRows / group);
}

// Fills items and returns the cost of all.
int64_t BuildItems(const PagedAttentionParams& p, int32_t threads, std::vector<CostedItem>& items) {
  const int32_t group = p.num_q_heads / p.cache.num_kv_heads;
  const int32_t tile = TileTokens(p, threads);
  const int64_t capacity = static_cast<int64_t>(p.max_blocks) * p.cache.block_size;
  int64_t total = 0;
  items.clear();
  for (int32_t s = 0; s < p.num_seqs; ++s) {
    const int32_t query_len = p.query_start[s + 1] - p.query_start[s];
    if (query_len <= 0 || p.seq_len[s] == 0) continue;
    FASTLLM_CHECK(p.seq_len[s] >= query_len && p.seq_len[s] <= capacity,
                  "paged_attention: sequence " + std::to_string(s) + " has length " + std::to_string(p.seq_len[s]) +
                      ", outside [" + std::to_string(query_len) + ", " + std::to_string(capacity) + "]");
    const int32_t before = p.seq_len[s] - query_len;
    for (int32_t first = 0; first < query_len; first += tile) {
      const int32_t n = std::min(tile, query_len - first);
      int64_t seen = int64_t{before} + first + (n + 1) / 2;
      if (p.window > 0) seen = std::min<int64_t>(seen, p.window);
      const int64_t cost = seen * n * group;
      const int32_t first_split = FirstSplit(p, {s, 0, first, n});
      const int32_t splits = (before + first + n + kAttentionSplit - 1) / kAttentionSplit - first_split;
      for (int32_t h = 0; h < p.cache.num_kv_heads; ++h) {
        items.push_back({{s, h, first, n}, cost, first_split, splits, 0});
      }
      total += cost * p.cache.num_kv_heads;
    }
  }
  return total;
}

// Whether to split positions so that `threads` have work; places the sums of the items then.
bool ShouldSplit(const PagedAttentionParams& p, int32_t threads, std::vector<CostedItem>& items, int64_t* sums) {
  *sums = 0;
  if (threads <= 1 || static_cast<int64_t>(items.size()) >= kItemsPerThread * threads) return false;
  bool any = false;
  for (CostedItem& i : items) {
    i.sums = *sums;
    if (i.splits > 1) *sums += i.splits * SumsFloats(p, i.item);
    any |= i.splits > 1;
  }
  return any && *sums <= kMaxSums;
}

void BuildUnits(const std::vector<CostedItem>& items, bool split, int32_t heads, std::vector<Unit>& units) {
  units.clear();
  if (heads > 1) {
    for (size_t i = 0; i < items.size(); i += static_cast<size_t>(heads)) {
      units.push_back({static_cast<int32_t>(i), heads, -1, items[i].cost * heads});
    }
    return;
  }
  for (size_t i = 0; i < items.size(); ++i) {
    const auto index = static_cast<int32_t>(i);
    if (!split || items[i].splits == 1) {
      units.push_back({index, 1, -1, items[i].cost});
      continue;
    }
    for (int32_t s = 0; s < items[i].splits; ++s) {
      units.push_back({index, 1, items[i].first_split + s, items[i].cost / items[i].splits});
    }
  }
}

// KV heads of the same tokens lie side by side in the cache: where there is enough to go round one thread takes all,
// and what the hardware fetches ahead of one head is the next head's.
int32_t HeadsTogether(const PagedAttentionParams& p, const std::vector<CostedItem>& items, int32_t threads) {
  const int32_t heads = p.cache.num_kv_heads;
  return static_cast<int64_t>(items.size()) / heads >= kItemsPerThread * threads ? heads : 1;
}

}  // namespace

void RunAttention(const AttentionKernels& k, const PagedAttentionParams& p, const OpContext& ctx) {
  thread_local Workspace ws;
  CheckShapes(p);
  // About 12 elements of head_dim a nanosecond, for the products with K and V together.
  const int64_t work = BuildItems(p, ctx.num_threads, ws.items) * p.cache.head_dim / 12;
  int64_t sums_floats = 0;
  const bool split = ShouldSplit(p, TeamSize(ctx.num_threads, work, ctx.num_threads), ws.items, &sums_floats);
  BuildUnits(ws.items, split, split ? 1 : HeadsTogether(p, ws.items, ctx.num_threads), ws.units);
  const int32_t team = TeamSize(static_cast<int64_t>(ws.units.size()), work, ctx.num_threads);
  if (team > 1) {
    const auto costlier = [](const Unit& a, const Unit& b) { return a.cost > b.cost; };
    // Results do not depend on the order; std::sort allocates nothing, and a batch of equal lengths is in order.
    if (!std::is_sorted(ws.units.begin(), ws.units.end(), costlier)) {
      std::sort(ws.units.begin(), ws.units.end(), costlier);
    }
  }
  const int32_t group = p.num_q_heads / p.cache.num_kv_heads;
  const int64_t floats = ScratchFloats(std::max(kTileRows, group), p.cache.head_dim);
  float* const scratch = Aligned(ws.scratch, floats * team);
  float* const sums = split ? Aligned(ws.sums, sums_floats) : nullptr;
  const CostedItem* items = ws.items.data();
  const Unit* units = ws.units.data();
  const auto num_units = static_cast<int64_t>(ws.units.size());
  ParallelItems(num_units, work, team, [&](int64_t i, int32_t thread) {
    const Unit& unit = units[i];
    if (unit.split >= 0) {
      const CostedItem& c = items[unit.item];
      float* to = sums + c.sums + (unit.split - c.first_split) * SumsFloats(p, c.item);
      return k.attention_split(p, c.item, unit.split, scratch + floats * thread, to);
    }
    for (int32_t item = unit.item; item < unit.item + unit.count; ++item) {
      const AttentionItem* next = nullptr;
      if (item + 1 < unit.item + unit.count) {
        next = &items[item + 1].item;
      } else if (i + team < num_units && units[i + team].split < 0) {
        next = &items[units[i + team].item].item;
      }
      k.attention(p, items[item].item, next, scratch + floats * thread);
    }
  });
  if (!split) return;
  ParallelRanges(static_cast<int64_t>(ws.items.size()), sums_floats / 8, team, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (items[i].splits > 1) k.attention_join(p, items[i].item, sums + items[i].sums, SumsFloats(p, items[i].item));
    }
  });
}

}  // namespace fastllm::ops::cpu
