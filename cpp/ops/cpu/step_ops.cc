// feed_tokens, keep_tokens and random_fill: plain loops.
#include <algorithm>
#include <cstring>
#include <string>

#include "core/base/check.h"
#include "ops/cpu/drive.h"
#include "ops/cpu/parallel.h"

namespace fastllm::ops::cpu {
namespace {

// SplitMix64's output function (Steele, Lea, Flood 2014): a well mixed hash of a counter.
uint64_t Mix(uint64_t z) {
  z += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

void CountOutput(TokenTally& tally) {
  if ((tally & kMostCounted) != kMostCounted) ++tally;
}

}  // namespace

void FeedTokens(const FeedTokensParams& p, const OpContext&) {
  for (int32_t t = 0; t < p.num_tokens; ++t) {
    const int32_t planned = p.planned[t];
    FASTLLM_CHECK(planned >= -p.num_slots, "feed_tokens: token " + std::to_string(t) + " reads slot " +
                                               std::to_string(-1 - planned) + " of " + std::to_string(p.num_slots));
    p.ids[t] = planned >= 0 ? planned : p.last_tokens[-1 - planned];
  }
  if (p.num_seqs == 0) return;
  const int64_t width = *p.table_width;
  FASTLLM_CHECK(width >= 0 && width <= p.max_blocks, "feed_tokens: a block table of " + std::to_string(width) +
                                                         " blocks, the limit is " + std::to_string(p.max_blocks));
  for (int64_t s = 0; s < p.num_seqs; ++s) {
    std::copy_n(p.packed_table + s * width, width, p.block_table + s * p.max_blocks);
  }
}

void KeepTokens(const KeepTokensParams& p, const OpContext&) {
  for (int32_t r = 0; r < p.num_rows; ++r) {
    FASTLLM_CHECK(p.slots[r] < p.num_slots,
                  "keep_tokens: slot " + std::to_string(p.slots[r]) + " of " + std::to_string(p.num_slots));
    const int32_t token = std::max(p.tokens[r], 0);
    if (p.slots[r] >= 0) p.last_tokens[p.slots[r]] = token;
    if (p.counts == nullptr || p.count_rows[r] < 0) continue;
    FASTLLM_CHECK(p.count_rows[r] < p.num_count_rows, "keep_tokens: counts of row " + std::to_string(p.count_rows[r]) +
                                                          " of " + std::to_string(p.num_count_rows));
    CountOutput(p.counts[static_cast<int64_t>(p.count_rows[r]) * p.vocab + token]);
  }
}

void CountTokens(const CountTokensParams& p, const OpContext&) {
  for (int32_t i = 0; i < p.num_segments; ++i) {
    const CountSegment& s = p.segments[i];
    FASTLLM_CHECK(s.row >= 0 && s.row < p.num_count_rows,
                  "count_tokens: row " + std::to_string(s.row) + " of " + std::to_string(p.num_count_rows));
    TokenTally* const counts = p.counts + static_cast<int64_t>(s.row) * p.vocab;
    if (s.reset) std::fill_n(counts, p.vocab, TokenTally{0});
    for (int32_t t = s.begin; t < s.end; ++t) {
      const int32_t id = p.ids[t];
      FASTLLM_CHECK(id >= 0 && id < p.vocab,
                    "count_tokens: id " + std::to_string(id) + " of " + std::to_string(p.vocab));
      if (t < s.begin + s.num_prompt) {
        counts[id] |= kTallyInPrompt;
      } else {
        CountOutput(counts[id]);
      }
    }
  }
}

void RandomFill(const RandomFillParams& p, const OpContext& ctx) {
  float* out = static_cast<float*>(p.out);
  const uint64_t key = p.key + static_cast<uint64_t>(p.first);
  ParallelRanges(p.count, p.count, ctx.num_threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const uint64_t bits = Mix(key + static_cast<uint64_t>(i)) >> 40;  // 24 bits, exact in float
      out[i] = p.mean + p.scale * (static_cast<float>(bits) * 0x1p-23f - 1.0f);
    }
  });
}

}  // namespace fastllm::ops::cpu
