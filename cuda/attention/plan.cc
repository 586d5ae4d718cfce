#include "cuda/attention/plan.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "core/base/check.h"

namespace fastllm::cuda {
namespace {

constexpr int64_t kWorkerInts = sizeof(DecodeWorker) / 4;
constexpr int64_t kTileInts = sizeof(PrefillTile) / 4;
constexpr int64_t kSequenceInts = sizeof(DecodeSequence) / 4;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

bool IsDecode(const ops::AttentionPlanParams& p, int32_t query_len) {
  return query_len == 1 && p.dtype != ops::DType::kF32 && p.num_q_heads / p.num_kv_heads <= MaxDecodeGroup(p.head_dim);
}

struct Work {
  std::vector<DecodeSequence> decodes;
  std::vector<PrefillTile> tiles;
  int64_t units = 0;  // of all decodes and KV heads
};

Work Collect(const ops::AttentionPlanParams& p) {
  Work w;
  const int32_t group = p.num_q_heads / p.num_kv_heads;
  for (int32_t s = 0; s < p.num_seqs; ++s) {
    const int32_t query_len = p.query_start[s + 1] - p.query_start[s];
    if (query_len <= 0 || p.seq_len[s] <= 0) continue;
    FASTLLM_CHECK(p.seq_len[s] >= query_len, "attention_plan: sequence " + std::to_string(s) + " has " +
                                                 std::to_string(query_len) + " query rows and length " +
                                                 std::to_string(p.seq_len[s]));
    if (IsDecode(p, query_len)) {
      const auto units = static_cast<int32_t>(CeilDiv(p.seq_len[s], kUnitTokens));
      w.decodes.push_back({s, p.query_start[s], p.seq_len[s], units});
      w.units += int64_t{units} * p.num_kv_heads;
      continue;
    }
    const int64_t rows = int64_t{query_len} * group;
    for (int64_t r = 0; r < rows; r += kPrefillRows) {
      w.tiles.push_back({s, static_cast<int32_t>(r), query_len, p.seq_len[s]});
    }
  }
  // The longest first, so that the last ones to run are short.
  std::stable_sort(w.tiles.begin(), w.tiles.end(), [group](const PrefillTile& a, const PrefillTile& b) {
    const auto seen = [group](const PrefillTile& t) { return t.length - t.query_len + t.first_row / group; };
    return seen(a) > seen(b);
  });
  return w;
}

// Cuts the line of units into `used` equal pieces.
std::vector<DecodeWorker> Cut(const Work& w, int32_t kv_heads, int32_t used, int32_t workers) {
  std::vector<DecodeWorker> out(static_cast<size_t>(workers), DecodeWorker{});
  size_t d = 0;
  int64_t pair_start = 0;  // first unit, on the line, of the pair (d, head)
  int32_t head = 0;
  const auto piece = [&](int64_t i) { return i * w.units / used; };
  for (int32_t i = 0; i < used; ++i) {
    const int64_t begin = piece(i);
    const int64_t end = piece(i + 1);
    while (begin >= pair_start + w.decodes[d].units) {
      pair_start += w.decodes[d].units;
      if (++head == kv_heads) {
        head = 0;
        ++d;
      }
    }
    DecodeWorker& o = out[i];
    o.decode = static_cast<int32_t>(d);
    o.kv_head = head;
    o.first_unit = static_cast<int32_t>(begin - pair_start);
    o.units = static_cast<int32_t>(end - begin);
    o.owner = i;
    // Earlier workers of the same pair are known already.
    if (o.first_unit > 0) {
      int32_t owner = i - 1;
      while (piece(owner) > pair_start) --owner;
      o.owner = owner;
    }
  }
  // Parts of each pair: consecutive workers from the owner on.
  for (int32_t i = 0; i < used; ++i) {
    DecodeWorker& o = out[i];
    if (o.first_unit == 0) continue;
    out[o.owner].tail_parts = std::max(out[o.owner].tail_parts, i - o.owner + 1);
  }
  for (int32_t i = 0; i < used; ++i) {
    if (out[i].first_unit > 0) out[i].owner_parts = out[out[i].owner].tail_parts;
  }
  return out;
}

template <typename T>
int32_t* Append(int32_t* to, const std::vector<T>& v) {
  if (!v.empty()) std::memcpy(to, v.data(), v.size() * sizeof(T));
  return to + v.size() * sizeof(T) / 4;
}

}  // namespace

ops::AttentionPlanSize MakePlan(const ops::AttentionPlanParams& p, int32_t max_workers) {
  FASTLLM_CHECK(p.num_kv_heads > 0 && p.num_q_heads % p.num_kv_heads == 0,
                "attention_plan: " + std::to_string(p.num_q_heads) + " query heads are no multiple of " +
                    std::to_string(p.num_kv_heads) + " KV heads");
  Work w = Collect(p);
  const int32_t limit = p.decode_workers > 0 ? p.decode_workers : max_workers;
  const auto used = static_cast<int32_t>(std::min<int64_t>(limit, w.units));
  ops::AttentionPlanSize size;
  size.decode_workers = p.decode_workers > 0 ? p.decode_workers : used;
  size.prefill_tiles = static_cast<int32_t>(w.tiles.size());
  if (p.prefill_tiles > 0) {
    FASTLLM_CHECK(size.prefill_tiles <= p.prefill_tiles, "attention_plan: " + std::to_string(size.prefill_tiles) +
                                                             " tiles, the graph was captured with " +
                                                             std::to_string(p.prefill_tiles));
    size.prefill_tiles = p.prefill_tiles;
    w.tiles.resize(static_cast<size_t>(p.prefill_tiles), PrefillTile{});
  }
  size.record_ints = kPlanHeader + size.decode_workers * kWorkerInts + size.prefill_tiles * kTileInts +
                     static_cast<int64_t>(w.decodes.size()) * kSequenceInts;
  FASTLLM_CHECK(size.record_ints <= p.record_capacity, "attention_plan: the record needs " +
                                                           std::to_string(size.record_ints) + " ints, there are " +
                                                           std::to_string(p.record_capacity));
  p.record[0] = size.decode_workers;
  p.record[1] = size.prefill_tiles;
  p.record[2] = static_cast<int32_t>(w.decodes.size());
  p.record[3] = 0;
  int32_t* to = Append(p.record + kPlanHeader, Cut(w, p.num_kv_heads, used, size.decode_workers));
  Append(Append(to, w.tiles), w.decodes);
  return size;
}

ops::AttentionBound PlanBound(const ops::AttentionBoundParams& p, int32_t max_workers) {
  const int64_t group = p.num_q_heads / p.num_kv_heads;
  const int64_t tiles = CeilDiv(p.num_tokens * group, kPrefillRows) + p.num_seqs;
  ops::AttentionBound b;
  b.decode_workers = max_workers;
  b.record_ints = kPlanHeader + max_workers * kWorkerInts + tiles * kTileInts + p.num_seqs * kSequenceInts;
  b.workspace_bytes = WorkspaceFor(max_workers, static_cast<int32_t>(group), p.head_dim).total();
  return b;
}

DecodeWorkspace WorkspaceFor(int32_t workers, int32_t group, int32_t head_dim) {
  const int64_t rows = int64_t{2} * workers * std::min(group, MaxDecodeGroup(head_dim));  // each worker has at most two cut pairs
  return {CeilDiv(int64_t{workers} * 4, 256) * 256, CeilDiv(rows * 8, 256) * 256, rows * head_dim * 4};
}

}  // namespace fastllm::cuda
