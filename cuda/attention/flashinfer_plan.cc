#include "cuda/attention/flashinfer_plan.h"

#include <algorithm>
#include <numeric>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "core/base/check.h"

namespace fastllm::cuda {
namespace {

constexpr int32_t kBlocksPerSm = 2;       // of the decode kernel
constexpr int32_t kLeastPositions = 128;  // of a chunk

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

int32_t QueryLen(const ops::AttentionPlanParams& p, int32_t s) { return p.query_start[s + 1] - p.query_start[s]; }

// Row tiles of one query token.
int32_t DecodeTiles(int32_t num_q_heads, int32_t num_kv_heads) {
  return static_cast<int32_t>(CeilDiv(num_q_heads / num_kv_heads, kFlashInferDecodeRows));
}

// Works that run at once.
int32_t Capacity(int32_t num_kv_heads, int32_t multiprocessors) {
  return std::max(1, kBlocksPerSm * multiprocessors / num_kv_heads);
}

struct Decodes {
  std::vector<int32_t> seqs;
  int32_t tiles = 1;  // row tiles of each
  int64_t chunk = 0;  // positions of a part
  bool split = false;

  int64_t PartsOf(const ops::AttentionPlanParams& p, int32_t s) const {
    return split ? CeilDiv(p.seq_len[s], chunk) : 1;
  }
  int64_t Works(const ops::AttentionPlanParams& p) const {
    int64_t n = 0;
    for (const int32_t s : seqs) n += tiles * PartsOf(p, s);
    return n;
  }
};

// The shortest chunk, in whole blocks, whose parts run at once; no cut where the sequences alone fill the machine.
Decodes CutDecodes(const ops::AttentionPlanParams& p, int32_t multiprocessors) {
  Decodes d;
  d.tiles = DecodeTiles(p.num_q_heads, p.num_kv_heads);
  int64_t longest = 1;
  for (int32_t s = 0; s < p.num_seqs; ++s) {
    if (QueryLen(p, s) != 1 || p.seq_len[s] <= 0) continue;
    d.seqs.push_back(s);
    longest = std::max<int64_t>(longest, p.seq_len[s]);
  }
  const bool fixed = p.decode_workers > 0;
  const int64_t most = fixed ? p.decode_workers & ~kFlashInferSplit : Capacity(p.num_kv_heads, multiprocessors);
  const int64_t least = std::max<int64_t>(1, kLeastPositions / p.block_size);
  int64_t low = least, high = std::max(low, CeilDiv(longest, p.block_size));
  d.split = true;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    d.chunk = middle * p.block_size;
    if (d.Works(p) > most) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  d.chunk = low * p.block_size;
  if (!fixed && d.chunk >= longest) d.split = false;
  return d;
}

// One multiprocessor's share.
struct Share {
  int64_t cost;
  int32_t index;
  bool operator>(const Share& o) const { return cost != o.cost ? cost > o.cost : index > o.index; }
};

struct Item {
  int32_t seq, tile, head;
};

// The longest sequences first, each item to whoever has least so far.
std::vector<std::vector<Item>> DealItems(const ops::AttentionPlanParams& p, int32_t multiprocessors) {
  const int32_t rows = FlashInferPrefillRows(p.head_dim);
  std::vector<int32_t> order;
  for (int32_t s = 0; s < p.num_seqs; ++s) {
    if (QueryLen(p, s) > 1 && p.seq_len[s] > 0) order.push_back(s);
  }
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return p.seq_len[a] > p.seq_len[b]; });
  std::priority_queue<Share, std::vector<Share>, std::greater<>> shares;
  for (int32_t i = 0; i < multiprocessors; ++i) shares.push({0, i});
  std::vector<std::vector<Item>> dealt(multiprocessors);
  for (int32_t h = 0; h < p.num_q_heads; ++h) {
    for (const int32_t s : order) {
      const int32_t query_len = QueryLen(p, s);
      for (auto t = static_cast<int32_t>(CeilDiv(query_len, rows)) - 1; t >= 0; --t) {
        Share share = shares.top();
        shares.pop();
        dealt[share.index].push_back({s, t, h});
        const int64_t seen = std::min<int64_t>(p.seq_len[s], p.seq_len[s] - query_len + int64_t{t + 1} * rows);
        share.cost += 2 * rows + seen;
        shares.push(share);
      }
    }
  }
  return dealt;
}

void WriteDecodes(const ops::AttentionPlanParams& p, const Decodes& d, const FlashInferLayout& o) {
  int32_t* const r = p.record;
  auto* const valid = reinterpret_cast<uint8_t*>(r + o.valid);
  int64_t work = 0, part = 0;
  size_t next = 0;
  int32_t rows = 0;
  r[o.out_start] = r[o.merge_start] = 0;
  for (int32_t s = 0; s < p.num_seqs; ++s) {
    const bool mine = next < d.seqs.size() && d.seqs[next] == s;
    const int64_t parts = mine ? d.PartsOf(p, s) : 0;
    for (int64_t t = 0; mine && t < d.tiles; ++t) {
      for (int64_t k = 0; k < parts; ++k, ++work) {
        r[o.requests + work] = s;
        r[o.q_tiles + work] = static_cast<int32_t>(t);
        r[o.kv_tiles + work] = static_cast<int32_t>(k);
        valid[work] = 1;
      }
    }
    for (int32_t row = p.query_start[s]; row < p.query_start[s + 1]; ++row) {
      part += parts;  // of each row; decodes have one
      r[o.merge_start + row + 1] = static_cast<int32_t>(part);
    }
    r[o.out_start + s + 1] = d.split ? static_cast<int32_t>(part) : p.query_start[s + 1];
    if (mine) {
      rows = p.query_start[s + 1];
      ++next;
    }
  }
  r[o.chunk] = static_cast<int32_t>(std::max<int64_t>(1, d.chunk));
  r[o.rows] = rows;
}

void WriteItems(const ops::AttentionPlanParams& p, const std::vector<std::vector<Item>>& dealt,
                const FlashInferLayout& o) {
  int32_t* const r = p.record;
  int32_t n = 0;
  for (size_t i = 0; i < dealt.size(); ++i) {
    r[o.item_start + i] = n;
    for (const Item& item : dealt[i]) {
      r[o.heads + n] = item.head;
      r[o.tiles + n] = item.tile;
      r[o.q_start + n] = p.query_start[item.seq];
      r[o.pages + n] = item.seq * p.max_blocks;
      r[o.q_len + n] = QueryLen(p, item.seq);
      r[o.kv_len + n] = p.seq_len[item.seq];
      r[o.seqs + n] = item.seq;
      ++n;
    }
  }
  r[o.item_start + dealt.size()] = n;
}

}  // namespace

FlashInferLayout FlashInferLayout::Of(int32_t works, int32_t items, int32_t num_seqs, int64_t num_tokens,
                                      int32_t multiprocessors) {
  FlashInferLayout o;
  int64_t at = 0;
  const auto take = [&at](int64_t ints) {
    const int64_t begin = at;
    at = CeilDiv(at + ints, 4) * 4;
    return begin;
  };
  o.requests = take(works);
  o.q_tiles = take(works);
  o.kv_tiles = take(works);
  o.valid = take(CeilDiv(works, 4));
  o.out_start = take(num_seqs + 1);
  o.merge_start = take(num_tokens + 1);
  o.chunk = take(1);
  o.rows = take(1);
  o.page_start = take(num_seqs + 1);
  o.last_page = take(num_seqs);
  o.item_start = take(multiprocessors + 1);
  for (int64_t* of_items : {&o.heads, &o.tiles, &o.q_start, &o.pages, &o.q_len, &o.kv_len, &o.seqs}) {
    *of_items = take(items);
  }
  o.total = at;
  return o;
}

ops::AttentionPlanSize MakeFlashInferPlan(const ops::AttentionPlanParams& p, int32_t multiprocessors,
                                          bool with_prefill) {
  FASTLLM_CHECK(p.window == 0 && !(p.logit_softcap > 0.0f) && p.prefill_tiles == 0,
                "attention_plan: FlashInfer's kernels are used without window and logit_softcap, and prefill not in "
                "captured steps");
  FASTLLM_CHECK(p.block_size > 0 && int64_t{p.num_seqs + 1} * p.max_blocks <= INT32_MAX,
                "attention_plan: a block table of " + std::to_string(p.num_seqs) + " x " +
                    std::to_string(p.max_blocks) + " blocks of " + std::to_string(p.block_size));
  const Decodes d = CutDecodes(p, multiprocessors);
  const auto dealt = with_prefill ? DealItems(p, multiprocessors) : std::vector<std::vector<Item>>(multiprocessors);
  const bool fixed = p.decode_workers > 0;
  const int64_t works = d.Works(p);
  const int64_t launched = fixed ? p.decode_workers & ~kFlashInferSplit : works;
  FASTLLM_CHECK(works <= launched, "attention_plan: " + std::to_string(works) + " pieces of decode, the graph has " +
                                       std::to_string(launched));
  ops::AttentionPlanSize size;
  size.decode_workers = static_cast<int32_t>(launched) | (d.split && launched > 0 ? kFlashInferSplit : 0);
  size.prefill_tiles = std::accumulate(dealt.begin(), dealt.end(), 0, [](int32_t n, const auto& items) {
    return n + static_cast<int32_t>(items.size());
  });
  const auto o = FlashInferLayout::Of(static_cast<int32_t>(launched), size.prefill_tiles, p.num_seqs,
                                      p.query_start[p.num_seqs], multiprocessors);
  size.record_ints = o.total;
  FASTLLM_CHECK(o.total <= p.record_capacity, "attention_plan: the record needs " + std::to_string(o.total) +
                                                  " ints, there are " + std::to_string(p.record_capacity));
  std::fill_n(p.record, o.total, 0);
  WriteDecodes(p, d, o);
  WriteItems(p, dealt, o);
  // A row of the block table is a sequence's pages, used or not; what it has too many is taken off its last page.
  for (int32_t s = 0; s <= p.num_seqs; ++s) p.record[o.page_start + s] = s * p.max_blocks;
  for (int32_t s = 0; s < p.num_seqs; ++s) {
    p.record[o.last_page + s] = p.seq_len[s] - (p.max_blocks - 1) * p.block_size;
  }
  return size;
}

ops::AttentionBound FlashInferBound(const ops::AttentionBoundParams& p, int32_t multiprocessors, bool with_prefill) {
  const int64_t works = std::max<int64_t>(Capacity(p.num_kv_heads, multiprocessors),
                                          int64_t{p.num_seqs} * DecodeTiles(p.num_q_heads, p.num_kv_heads));
  const int64_t tiles = with_prefill ? CeilDiv(p.num_tokens, FlashInferPrefillRows(p.head_dim)) + p.num_seqs : 0;
  const auto o = FlashInferLayout::Of(static_cast<int32_t>(works), static_cast<int32_t>(tiles * p.num_q_heads),
                                      p.num_seqs, p.num_tokens, multiprocessors);
  ops::AttentionBound b;
  b.record_ints = o.total;
  b.decode_workers = static_cast<int32_t>(works) | kFlashInferSplit;
  const int64_t partial = FlashInferPartialRows(p.num_seqs, p.num_kv_heads, multiprocessors) * p.num_q_heads;
  b.workspace_bytes = partial * (p.head_dim * 2 + 4) + 256;
  return b;
}

int64_t FlashInferPartialRows(int32_t num_seqs, int32_t num_kv_heads, int32_t multiprocessors) {
  return std::max(Capacity(num_kv_heads, multiprocessors), num_seqs);
}

}  // namespace fastllm::cuda
