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
    if (p.slots[r] >= 0) p.last_tokens[p.slots[r]] = std::max(p.tokens[r], 0);
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
