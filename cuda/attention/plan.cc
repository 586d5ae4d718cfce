#include "cuda/attention/plan.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "core/base/check.h"

namespace fastllm::cuda {
namespace {

constexpr int64_t kWorkerInts = sizeof(DecodeWorker) / 4;
constexpr int64_t kTileInts = sizeof(PrefillTile) / 4;
constexpr int64_t kSequenceInts = sizeof(DecodeSequence) / 4;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t RoundUp(int64_t bytes) { return CeilDiv(bytes, 256) * 256; }

// Whether single query rows go to the decode kernel.
template <typename Params>
bool HasDecodes(const Params& p) {
  return p.dtype != ops::DType::kF32 && p.num_q_heads / p.num_kv_heads <= MaxDecodeGroup(p.head_dim);
}

// Positions before the window of the row at `position`.
int32_t Unseen(const ops::AttentionPlanParams& p, int32_t position) {
  return p.window > 0 ? std::max(0, position + 1 - p.window) : 0;
}

struct Work {
  std::vector<DecodeSequence> decodes;
  std::vector<PrefillTile> tiles;
  int64_t units = 0;  // of all decodes and KV heads
};

// Decodes are left out where `with_decodes` is false.
Work Collect(const ops::AttentionPlanParams& p, bool with_decodes) {
  Work w;
  const int32_t group = p.num_q_heads / p.num_kv_heads;
  for (int32_t s = 0; s < p.num_seqs; ++s) {
    const int32_t query_len = p.query_start[s + 1] - p.query_start[s];
    if (query_len <= 0 || p.seq_len[s] <= 0) continue;
    FASTLLM_CHECK(p.seq_len[s] >= query_len, "attention_plan: sequence " + std::to_string(s) + " has " +
                                                 std::to_string(query_len) + " query rows and length " +
                                                 std::to_string(p.seq_len[s]));
    if (query_len == 1 && HasDecodes(p)) {
      if (!with_decodes) continue;
      const int32_t unseen = Unseen(p, p.seq_len[s] - 1) / kUnitTokens;
      const auto units = static_cast<int32_t>(CeilDiv(p.seq_len[s], kUnitTokens)) - unseen;
      w.decodes.push_back({s, p.query_start[s], p.seq_len[s], units});
      w.units += int64_t{units} * p.num_kv_heads;
      continue;
    }
    const int64_t rows = int64_t{query_len} * group;
    for (int64_t r = 0; r < rows; r += kPrefillRows) {
      const auto last_token = static_cast<int32_t>((std::min(r + kPrefillRows, rows) - 1) / group);
      const int32_t before = p.seq_len[s] - query_len;
      const int32_t first = Unseen(p, before + static_cast<int32_t>(r / group)) / PrefillCols(p.head_dim);
      const auto tiles = static_cast<int32_t>(CeilDiv(before + last_token + 1, PrefillCols(p.head_dim))) - first;
      w.tiles.push_back(
          {s, p.query_start[s], static_cast<int32_t>(r), query_len, p.seq_len[s], first, tiles, 0, 1, 0, 0, 0});
    }
  }
  return w;
}

// Parts that a row tile of `tiles` column tiles is cut into so that none is much longer than `limit`. A part costs
// about three column tiles of time to add up, and must save them.
int32_t PartsOf(int32_t tiles, int64_t limit) {
  constexpr int64_t kMergeTiles = 3;
  if (tiles <= limit + std::max(limit / 4, kMergeTiles)) return 1;
  return static_cast<int32_t>(std::min<int64_t>(CeilDiv(tiles, limit), kMaxPrefillParts));
}

// The tiles, those cut that are longer than a worker's share of the whole. `slots`: parts that there is room for.
std::vector<PrefillTile> CutTiles(const std::vector<PrefillTile>& tiles, int32_t kv_heads, int32_t slots) {
  constexpr int64_t kLeast = 4;  // column tiles of a part
  if (slots < 2 * kv_heads) return tiles;
  int64_t all = 0;
  for (const PrefillTile& t : tiles) all += int64_t{t.tiles} * kv_heads;
  int64_t limit = std::max(kLeast, CeilDiv(all, slots));
  const auto used = [&] {
    int64_t n = 0;
    for (const PrefillTile& t : tiles) {
      const int32_t parts = PartsOf(t.tiles, limit);
      n += parts > 1 ? int64_t{parts} * kv_heads : 0;
    }
    return n;
  };
  while (used() > slots) limit += CeilDiv(limit, 8);
  std::vector<PrefillTile> out;
  int32_t slot = 0;
  for (PrefillTile t : tiles) {
    const int32_t parts = PartsOf(t.tiles, limit), whole = t.tiles, first = t.first_tile;
    for (int32_t i = 0; i < parts; ++i) {
      const auto begin = static_cast<int32_t>(int64_t{i} * whole / parts);
      t.first_tile = first + begin;
      t.tiles = static_cast<int32_t>(int64_t{i + 1} * whole / parts) - begin;
      t.part = i;
      t.parts = parts;
      t.slot = slot;
      out.push_back(t);
    }
    slot += parts > 1 ? parts * kv_heads : 0;
  }
  return out;
}

// Puts tiles in the order of their start. Sequences go in sections whose K and V the L2 holds, the longest first, as
// every tile reads most of them; within a section the longest tiles go first, so that the last ones to run are short.
void SortTiles(const ops::AttentionPlanParams& p, std::vector<PrefillTile>& tiles) {
  constexpr int64_t kSectionBytes = int64_t{16} << 20;
  const int64_t position_bytes = int64_t{2} * 2 * p.num_kv_heads * p.head_dim;
  std::vector<int32_t> order(static_cast<size_t>(p.num_seqs)), section(order.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return p.seq_len[a] > p.seq_len[b]; });
  int32_t at = 0;
  int64_t bytes = 0;
  for (const int32_t s : order) {
    if (p.query_start[s + 1] - p.query_start[s] <= 0) continue;
    if (bytes + p.seq_len[s] * position_bytes > kSectionBytes && bytes > 0) {
      ++at;
      bytes = 0;
    }
    section[s] = at;
    bytes += p.seq_len[s] * position_bytes;
  }
  std::stable_sort(tiles.begin(), tiles.end(), [&](const PrefillTile& a, const PrefillTile& b) {
    return section[a.seq] != section[b.seq] ? section[a.seq] < section[b.seq] : a.tiles > b.tiles;
  });
}

void PlanTiles(const ops::AttentionPlanParams& p, int32_t workers, std::vector<PrefillTile>& tiles) {
  std::vector<PrefillTile> cut = CutTiles(tiles, p.num_kv_heads, workers);
  // A captured graph has room for so many.
  if (p.prefill_tiles == 0 || cut.size() <= static_cast<size_t>(p.prefill_tiles)) tiles = std::move(cut);
  SortTiles(p, tiles);
  const size_t first_items = static_cast<size_t>(workers) / p.num_kv_heads;  // tiles whose every item starts at once
  std::map<int32_t, int32_t> missing;                                        // by slot: parts beyond those
  for (size_t i = first_items; i < tiles.size(); ++i) missing[tiles[i].slot] += tiles[i].parts > 1 ? 1 : 0;
  for (PrefillTile& t : tiles) t.together = t.parts > 1 && missing[t.slot] == 0 ? 1 : 0;
}

// A piece of the line of units: [begin, end).
struct Piece {
  int64_t begin;
  int64_t end;
};

// Extra units that a worker may take to spare everyone the merging of cut pairs: about what the merge costs.
constexpr double kMergeUnits = 1.25;

// Whole pairs, as many to a worker as nearly fill its share; empty where that takes more than `limit` workers.
std::vector<Piece> WholePairs(const Work& w, int32_t kv_heads, int32_t limit) {
  const auto most = static_cast<int64_t>(static_cast<double>(w.units) / limit + kMergeUnits);
  std::vector<Piece> out;
  int64_t at = 0;
  for (const DecodeSequence& d : w.decodes) {
    if (d.units > most) return {};
    for (int32_t h = 0; h < kv_heads; ++h) {
      if (out.empty() || at + d.units - out.back().begin > most) out.push_back({at, at});
      at += d.units;
      out.back().end = at;
    }
    if (out.size() > static_cast<size_t>(limit)) return {};
  }
  return out;
}

// Equal pieces. Few pairs are not shared by more workers than it takes to fill the machine, as each costs a part to
// merge.
std::vector<Piece> EqualPieces(const Work& w, int32_t kv_heads, int32_t limit, int32_t multiprocessors) {
  constexpr int64_t kParts = 16;
  const int64_t pairs = static_cast<int64_t>(w.decodes.size()) * kv_heads;
  const int64_t enough = std::max<int64_t>(pairs * kParts, multiprocessors);
  const int64_t n = std::min({int64_t{limit}, enough, w.units});
  std::vector<Piece> out;
  for (int64_t i = 0; i < n; ++i) out.push_back({i * w.units / n, (i + 1) * w.units / n});
  return out;
}

// The workers of the pieces, in their order.
std::vector<DecodeWorker> Assign(const Work& w, const std::vector<Piece>& pieces, int32_t kv_heads) {
  std::vector<DecodeWorker> out(pieces.size(), DecodeWorker{});
  size_t d = 0;
  int64_t pair_start = 0;  // first unit, on the line, of the pair (d, head)
  int32_t head = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    while (pieces[i].begin >= pair_start + w.decodes[d].units) {
      pair_start += w.decodes[d].units;
      if (++head == kv_heads) {
        head = 0;
        ++d;
      }
    }
    DecodeWorker& o = out[i];
    o.first = w.decodes[d];
    o.decode = static_cast<int32_t>(d);
    o.kv_head = head;
    o.first_unit = static_cast<int32_t>(pieces[i].begin - pair_start);
    o.units = static_cast<int32_t>(pieces[i].end - pieces[i].begin);
    o.owner = static_cast<int32_t>(i);
    while (o.first_unit > 0 && pieces[o.owner].begin > pair_start) --o.owner;
  }
  // Parts of each pair: consecutive workers from the owner on.
  for (size_t i = 0; i < out.size(); ++i) {
    if (out[i].first_unit == 0) continue;
    DecodeWorker& owner = out[out[i].owner];
    owner.tail_parts = std::max(owner.tail_parts, static_cast<int32_t>(i) - out[i].owner + 1);
  }
  for (DecodeWorker& o : out) {
    if (o.first_unit > 0) o.owner_parts = out[o.owner].tail_parts;
  }
  return out;
}

template <typename T>
int32_t* Append(int32_t* to, const std::vector<T>& v) {
  if (!v.empty()) std::memcpy(to, v.data(), v.size() * sizeof(T));
  return to + v.size() * sizeof(T) / 4;
}

}  // namespace

ops::AttentionPlanSize MakePlan(const ops::AttentionPlanParams& p, const PlanDevice& device) {
  FASTLLM_CHECK(p.num_kv_heads > 0 && p.num_q_heads % p.num_kv_heads == 0,
                "attention_plan: " + std::to_string(p.num_q_heads) + " query heads are no multiple of " +
                    std::to_string(p.num_kv_heads) + " KV heads");
  Work w = Collect(p, device.decode_workers > 0);
  PlanTiles(p, device.prefill_workers, w.tiles);
  const int32_t limit = p.decode_workers > 0 ? p.decode_workers : device.decode_workers;
  std::vector<Piece> pieces;
  if (!w.decodes.empty()) pieces = WholePairs(w, p.num_kv_heads, limit);
  if (pieces.empty() && !w.decodes.empty()) {
    pieces = EqualPieces(w, p.num_kv_heads, limit, device.decode_workers / DecodeBlocksPerSm(p.head_dim));
  }
  std::vector<DecodeWorker> workers = Assign(w, pieces, p.num_kv_heads);
  if (p.decode_workers > 0) workers.resize(static_cast<size_t>(p.decode_workers), DecodeWorker{});
  ops::AttentionPlanSize size;
  size.decode_workers = static_cast<int32_t>(workers.size());
  size.prefill_tiles = static_cast<int32_t>(w.tiles.size());
  const int32_t used_tiles = size.prefill_tiles;
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
  p.record[kPlanUsedTiles] = used_tiles;
  Append(Append(Append(p.record + kPlanHeader, workers), w.tiles), w.decodes);
  return size;
}

ops::AttentionBound PlanBound(const ops::AttentionBoundParams& p, const PlanDevice& device) {
  const int64_t group = p.num_q_heads / p.num_kv_heads;
  const int64_t tiles = CeilDiv(p.num_tokens * group, kPrefillRows) + p.num_seqs + device.prefill_workers;
  ops::AttentionBound b;
  b.decode_workers = HasDecodes(p) ? device.decode_workers : 0;
  b.prefill_tiles = static_cast<int32_t>(tiles);
  b.record_ints = kPlanHeader + device.decode_workers * kWorkerInts + tiles * kTileInts + p.num_seqs * kSequenceInts;
  b.workspace_bytes = PrefillWorkspace(device.prefill_workers, p.head_dim).total() +
                      DecodeWorkspace(device.decode_workers, static_cast<int32_t>(group), p.head_dim).total();
  return b;
}

WorkspaceBytes DecodeWorkspace(int32_t workers, int32_t group, int32_t head_dim) {
  const int64_t rows =
      int64_t{2} * workers * std::min(group, MaxDecodeGroup(head_dim));  // each worker has at most two cut pairs
  return {RoundUp(int64_t{workers} * 4), RoundUp(rows * 8), RoundUp(rows * head_dim * 4)};
}

WorkspaceBytes PrefillWorkspace(int32_t workers, int32_t head_dim) {
  if (workers == 0) return {};
  const int64_t rows = int64_t{workers} * kPrefillRows;
  return {RoundUp((int64_t{workers} * kPrefillWarps + 1) * 4), RoundUp(rows * 8), RoundUp(rows * head_dim * 4)};
}

}  // namespace fastllm::cuda
