// The plan record, on the host alone: every unit of every (sequence, KV head) pair is done once, and the parts of a cut
// pair are consecutive workers that agree on the owner and on their number; prefill tiles cover each row and column
// once, and those without work, in plans for a captured step, come last.
#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "cuda/attention/flashinfer_plan.h"
#include "cuda/attention/plan.h"
#include "support.h"

namespace fastllm::cuda_check {
namespace {

using cuda::DecodeSequence;
using cuda::DecodeWorker;
using cuda::PrefillTile;

struct Batch {
  std::vector<int32_t> query_start = {0}, seq_len;
  int32_t window = 0;
  int32_t FirstSeen(int64_t position) const {
    return window > 0 ? static_cast<int32_t>(std::max<int64_t>(0, position + 1 - window)) : 0;
  }
  void Add(int query_len, int length) {
    query_start.push_back(query_start.back() + query_len);
    seq_len.push_back(length);
  }
};

struct Pair {
  std::vector<int> done;  // times, per unit
  std::vector<int> workers, parts, owners;
};

bool WorkersAgree(const Pair& pair) {
  for (const int n : pair.done) {
    if (n != 1) return false;
  }
  if (pair.workers.size() == 1) return true;
  for (size_t i = 0; i < pair.workers.size(); ++i) {
    if (pair.workers[i] != pair.workers[0] + static_cast<int>(i) || pair.owners[i] != pair.workers[0] ||
        pair.parts[i] != static_cast<int>(pair.workers.size())) {
      return false;
    }
  }
  return true;
}

// Walks the record as the kernel does.
bool DecodesCovered(const int32_t* record, const Batch& b, int32_t kv_heads) {
  const auto* workers = reinterpret_cast<const DecodeWorker*>(record + cuda::kPlanHeader);
  const auto* tiles = reinterpret_cast<const PrefillTile*>(workers + record[0]);
  const auto* decodes = reinterpret_cast<const DecodeSequence*>(tiles + record[1]);
  std::vector<Pair> pairs(static_cast<size_t>(record[2]) * kv_heads);
  for (size_t i = 0; i < pairs.size(); ++i) {
    const DecodeSequence& d = decodes[i / kv_heads];
    const int first = b.FirstSeen(d.length - 1) / cuda::kUnitTokens;
    if (d.units != (d.length + cuda::kUnitTokens - 1) / cuda::kUnitTokens - first) return false;
    pairs[i].done.resize(d.units);
  }
  for (int w = 0; w < record[0]; ++w) {
    int at = workers[w].decode * kv_heads + workers[w].kv_head, first = workers[w].first_unit, left = workers[w].units;
    while (left > 0) {
      if (at >= static_cast<int>(pairs.size())) return false;
      Pair& pair = pairs[at];
      const int units = static_cast<int>(pair.done.size());
      const int take = std::min(left, units - first);
      for (int u = first; u < first + take; ++u) ++pair.done[u];
      pair.workers.push_back(w);
      pair.owners.push_back(first > 0 ? workers[w].owner : w);
      pair.parts.push_back(first > 0 ? workers[w].owner_parts : first + take < units ? workers[w].tail_parts : 1);
      left -= take;
      first = 0;
      ++at;
    }
  }
  return std::all_of(pairs.begin(), pairs.end(), WorkersAgree);
}

// Whether the parts of one row tile cover its columns, from that of position `first` to that before `seen`, once, in
// their order, and leave their sums in slots of their own.
bool PartsCovered(const std::vector<PrefillTile>& parts, int32_t first, int64_t seen, int32_t kv_heads,
                  std::set<int>& slots) {
  int next = first / cuda::PrefillCols(128);
  for (size_t i = 0; i < parts.size(); ++i) {
    const PrefillTile& t = parts[i];
    if (t.part != static_cast<int>(i) || t.parts != static_cast<int>(parts.size()) || t.first_tile != next ||
        t.tiles < 1 || t.slot != parts[0].slot) {
      return false;
    }
    next += t.tiles;
    for (int h = 0; t.parts > 1 && h < kv_heads; ++h) {
      if (!slots.insert(t.slot + h * t.parts + t.part).second) return false;
    }
  }
  return next == (seen + cuda::PrefillCols(128) - 1) / cuda::PrefillCols(128);
}

bool TilesCovered(const int32_t* record, const Batch& b, int32_t kv_heads, int32_t group, int32_t prefill_workers) {
  const auto* tiles = reinterpret_cast<const PrefillTile*>(record + cuda::kPlanHeader +
                                                           record[0] * static_cast<int>(sizeof(DecodeWorker) / 4));
  std::map<std::pair<int, int>, std::vector<PrefillTile>> found;
  if (record[cuda::kPlanUsedTiles] > record[1]) return false;
  for (int i = record[cuda::kPlanUsedTiles]; i < record[1]; ++i) {
    if (tiles[i].query_len != 0) return false;
  }
  for (int i = 0; i < record[cuda::kPlanUsedTiles]; ++i) {
    const PrefillTile& t = tiles[i];
    if (t.query_len == 0) return false;
    const int s = t.seq;
    if (t.length != b.seq_len[s] || t.query_len != b.query_start[s + 1] - b.query_start[s]) return false;
    if (t.token != b.query_start[s]) return false;
    found[{s, t.first_row}].push_back(t);
  }
  std::set<int> slots;
  size_t wanted = 0;
  for (size_t s = 0; s < b.seq_len.size(); ++s) {
    const int query_len = b.query_start[s + 1] - b.query_start[s];
    if (query_len <= 1) continue;
    for (int r = 0; r < query_len * group; r += cuda::kPrefillRows, ++wanted) {
      std::vector<PrefillTile>& parts = found[{static_cast<int>(s), r}];
      std::sort(parts.begin(), parts.end(), [](const auto& x, const auto& y) { return x.part < y.part; });
      const int last_row = std::min(r + cuda::kPrefillRows, query_len * group) - 1;
      const int before = b.seq_len[s] - query_len;
      if (!PartsCovered(parts, b.FirstSeen(before + r / group), before + last_row / group + 1, kv_heads, slots)) {
        return false;
      }
    }
  }
  return wanted == found.size() && (slots.empty() || *slots.rbegin() < prefill_workers);
}

Batch RandomBatch(std::mt19937& rng) {
  Batch b;
  const int n = 1 + rng() % 40;
  for (int s = 0; s < n; ++s) {
    const int kind = rng() % 6;
    const int length = kind == 0 ? 1 + rng() % 3 : 1 + rng() % (rng() % 8 == 0 ? 20000 : 1500);
    b.Add(kind == 5 ? 0 : kind == 4 ? 1 + rng() % length : 1, kind == 3 && rng() % 3 == 0 ? 0 : length);
  }
  for (int s = 0; s < n; ++s) b.seq_len[s] = std::max(b.seq_len[s], b.query_start[s + 1] - b.query_start[s]);
  return b;
}

// FlashInfer's record, on the host alone: each decode's parts cover its positions once and are merged into its row, and
// each (tile, head) of the others is dealt once.
bool FlashInferCovered(const int32_t* r, const cuda::FlashInferLayout& o, const ops::AttentionPlanSize& size,
                       const Batch& b, const ops::AttentionPlanParams& p, int multiprocessors) {
  const int works = size.decode_workers & ~cuda::kFlashInferSplit;
  const bool split = (size.decode_workers & cuda::kFlashInferSplit) != 0;
  const auto* valid = reinterpret_cast<const uint8_t*>(r + o.valid);
  std::set<std::tuple<int, int, int>> done, dealt;
  for (int w = 0; w < works; ++w) {
    if (valid[w] == 0) continue;
    if (!done.insert({r[o.requests + w], r[o.q_tiles + w], r[o.kv_tiles + w]}).second) return false;
  }
  const int group = p.num_q_heads / p.num_kv_heads, q_tiles = (group + 15) / 16;
  size_t wanted = 0, items = 0;
  for (int s = 0; s < p.num_seqs; ++s) {
    const int query_len = b.query_start[s + 1] - b.query_start[s];
    if (query_len == 0 || b.seq_len[s] == 0) continue;
    if (query_len > 1) {
      items += static_cast<size_t>((query_len + 127) / 128) * p.num_q_heads;
      continue;
    }
    const int parts = split ? (b.seq_len[s] + r[o.chunk] - 1) / r[o.chunk] : 1;
    wanted += static_cast<size_t>(parts) * q_tiles;
    for (int i = 0; i < parts * q_tiles; ++i) {
      if (done.count({s, i / parts, i % parts}) == 0) return false;
    }
    const int row = b.query_start[s];
    if (r[o.merge_start + row + 1] - r[o.merge_start + row] != parts || row >= r[o.rows]) return false;
    if (r[o.out_start + s] != (split ? r[o.merge_start + row] : row)) return false;
  }
  for (int i = 0; i < r[o.item_start + multiprocessors]; ++i) {
    if (!dealt.insert({r[o.seqs + i], r[o.tiles + i], r[o.heads + i]}).second) return false;
  }
  return done.size() == wanted && dealt.size() == items && size.prefill_tiles == static_cast<int>(items);
}

void CheckFlashInferPlan(Checks& c, std::mt19937& rng, int round) {
  const Batch b = RandomBatch(rng);
  const int kv_heads = 1 + rng() % 8, multiprocessors = 1 + rng() % 140;
  ops::AttentionPlanParams p;
  p.query_start = b.query_start.data();
  p.seq_len = b.seq_len.data();
  p.num_seqs = static_cast<int32_t>(b.seq_len.size());
  p.num_q_heads = kv_heads * static_cast<int>(1 + rng() % 20);
  p.num_kv_heads = kv_heads;
  p.head_dim = 128;
  p.block_size = 16 << rng() % 4;
  p.max_blocks = 20000 / p.block_size + 1;
  const auto bound = cuda::FlashInferBound(
      {p.num_seqs, b.query_start.back(), p.num_q_heads, kv_heads, p.head_dim, p.dtype}, multiprocessors);
  if (rng() % 2 == 0) p.decode_workers = bound.decode_workers;
  std::vector<int32_t> record(bound.record_ints, -1);
  p.record = record.data();
  p.record_capacity = bound.record_ints;
  const auto size = cuda::MakeFlashInferPlan(p, multiprocessors);
  const auto o = cuda::FlashInferLayout::Of(size.decode_workers & ~cuda::kFlashInferSplit, size.prefill_tiles,
                                            p.num_seqs, b.query_start.back(), multiprocessors);
  const std::string label = "flashinfer plan round " + std::to_string(round);
  c.ExpectTrue(label + ": size", o.total == size.record_ints && o.total <= bound.record_ints);
  c.ExpectTrue(label + ": covered", FlashInferCovered(record.data(), o, size, b, p, multiprocessors));
}

// Groups that the decode kernel does not take: no workers to launch, and a tile for each single row.
void CheckWideGroups(Checks& c) {
  const cuda::PlanDevice device{264, 132};
  Batch b;
  for (const int length : {1, 90, 4000}) b.Add(1, length);
  ops::AttentionPlanParams p;
  p.query_start = b.query_start.data();
  p.seq_len = b.seq_len.data();
  p.num_seqs = 3;
  p.num_q_heads = 24;
  p.num_kv_heads = 1;
  p.head_dim = 64;
  const auto bound = cuda::PlanBound({3, 3, 24, 1, 64, p.dtype}, device);
  std::vector<int32_t> record(bound.record_ints, -1);
  p.record = record.data();
  p.record_capacity = bound.record_ints;
  p.decode_workers = bound.decode_workers;
  p.prefill_tiles = bound.prefill_tiles;
  const auto size = cuda::MakePlan(p, device);
  c.ExpectTrue("plan of wide groups", size.decode_workers == 0 && size.prefill_tiles == bound.prefill_tiles &&
                                          record[cuda::kPlanUsedTiles] >= 3 && record[2] == 0);
}

}  // namespace

void CheckPlan(Checks& c) {
  CheckWideGroups(c);
  std::mt19937 rng(7);
  for (int round = 0; round < 400; ++round) CheckFlashInferPlan(c, rng, round);
  for (int round = 0; round < 400; ++round) {
    Batch b = RandomBatch(rng);
    if (rng() % 3 == 0) b.window = 1 + rng() % 3000;
    const int kv_heads = 1 + rng() % 8, group = 1 + rng() % 16;
    const int max_workers = 1 + rng() % 300;
    const cuda::PlanDevice device{max_workers, rng() % 4 == 0 ? 0 : static_cast<int32_t>(1 + rng() % 200)};
    const bool fixed = rng() % 2;
    ops::AttentionPlanParams p;
    p.query_start = b.query_start.data();
    p.seq_len = b.seq_len.data();
    p.num_seqs = static_cast<int32_t>(b.seq_len.size());
    p.num_q_heads = kv_heads * group;
    p.num_kv_heads = kv_heads;
    p.head_dim = 128;
    p.window = b.window;
    p.decode_workers = fixed ? max_workers : 0;
    const auto bound =
        cuda::PlanBound({p.num_seqs, b.query_start.back(), p.num_q_heads, kv_heads, p.head_dim, p.dtype}, device);
    p.prefill_tiles = fixed ? bound.prefill_tiles : 0;
    std::vector<int32_t> record(bound.record_ints, -1);
    p.record = record.data();
    p.record_capacity = bound.record_ints;
    const auto size = cuda::MakePlan(p, device);
    const std::string label = "plan round " + std::to_string(round);
    c.ExpectTrue(label + ": within the bound", size.record_ints <= bound.record_ints);
    c.ExpectTrue(label + ": launch sizes",
                 size.decode_workers == record[0] && size.prefill_tiles == record[1] &&
                     size.decode_workers <= max_workers &&
                     (!fixed || (size.decode_workers == max_workers && size.prefill_tiles == bound.prefill_tiles)));
    c.ExpectTrue(label + ": decodes", DecodesCovered(record.data(), b, kv_heads));
    c.ExpectTrue(label + ": tiles", TilesCovered(record.data(), b, kv_heads, group, device.prefill_workers));
  }
}

}  // namespace fastllm::cuda_check
