// Penalties that the sample op takes from tallies: what process_logits does with lists, and counting.
#include <algorithm>
#include <limits>
#include <random>
#include <vector>

#include "core/base/check.h"
#include "ops/contract/feed.h"
#include "ops/contract/logits.h"
#include "ops/contract/sampling.h"
#include "support.h"

namespace fastllm::ops {
namespace {

using SamplePenalty = ArmTest;

struct Case {
  int vocab;
  std::vector<float> logits;
  std::vector<TokenTally> counts;
  std::vector<TokenCount> list;
  std::vector<TokenBias> biases;
  PenaltyRow penalty;
  SampleRow rule;
};

Case RandomCase(int vocab, uint64_t seed) {
  std::mt19937_64 rng(seed);
  const auto unit = [&] { return static_cast<float>(rng() % 1000) / 1000.0f; };
  Case c{vocab, RandomNormal(vocab, seed, 2.0f), std::vector<TokenTally>(vocab), {}, {}, {}, {}};
  for (int i = 0; i < vocab; ++i) {
    if (rng() % 9 == 0) c.logits[i] = -std::numeric_limits<float>::infinity();
    const bool prompt = rng() % 3 == 0;
    const int outputs = rng() % 3 == 0 ? 1 + static_cast<int>(rng() % 20) : 0;
    if (!prompt && outputs == 0) continue;
    c.counts[i] = static_cast<TokenTally>(outputs | (prompt ? kTallyInPrompt : 0));
    c.list.push_back({i, outputs, prompt});
  }
  std::shuffle(c.list.begin(), c.list.end(), rng);
  for (int i = 0; i < vocab; i += 7) c.biases.push_back({i, 4.0f * unit() - 2.0f});
  c.biases.push_back({vocab, 50.0f});
  c.penalty = {0, 0, static_cast<int32_t>(c.biases.size()), 0.5f + unit(), 2.0f * unit() - 1.0f, 2.0f * unit() - 1.0f};
  if (seed % 4 == 0) c.penalty.count_row = -1;
  if (seed % 4 == 1) c.penalty.bias_end = 0;
  c.rule.temperature = seed % 3 == 0 ? 0.0f : 0.3f + unit();
  if (seed % 2 == 0) c.rule.top_k = 1 + static_cast<int32_t>(rng() % 30);
  if (seed % 5 == 0) c.rule.top_p = 0.8f;
  c.rule.seed = seed;
  c.rule.write_filtered = true;
  return c;
}

TEST_P(SamplePenalty, EqualsProcessLogitsAndThenSample) {
  const auto sample = Get<SampleFn>(OpId::kSample);
  const auto process = Get<ProcessLogitsFn>(OpId::kProcessLogits);
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const Case c = RandomCase(seed % 2 == 0 ? 500 : 33, seed);
    const std::vector<int32_t> bans = {3, 17};
    const int32_t ban_start[] = {0, seed % 3 == 0 ? 2 : 0};
    std::vector<float> processed = c.logits, want(c.vocab), got(c.vocab);
    LogitsRow row;
    row.logit_bias = {c.biases.data(), c.penalty.bias_end};
    if (c.penalty.count_row >= 0) row.counts = {c.list.data(), static_cast<int32_t>(c.list.size())};
    row.repetition_penalty = c.penalty.repetition_penalty;
    row.frequency_penalty = c.penalty.frequency_penalty;
    row.presence_penalty = c.penalty.presence_penalty;
    process({processed.data(), &row, c.vocab, 1, c.vocab}, {});
    int32_t expected = -2, token = -2;
    SampleParams p{processed.data(), &expected, &c.rule, bans.data(), ban_start, c.vocab, 1, c.vocab, want.data()};
    sample(p, {});
    p.logits = c.logits.data();
    p.tokens = &token;
    p.filtered = got.data();
    p.penalties = &c.penalty;
    p.counts = c.counts.data();
    p.biases = c.biases.data();
    sample(p, {});
    EXPECT_EQ(token, expected) << seed;
    EXPECT_EQ(got, want) << seed;
  }
}

TEST_P(SamplePenalty, RowsWithoutAnyAreLeftAlone) {
  const auto sample = Get<SampleFn>(OpId::kSample);
  const std::vector<float> logits = {1.0f, 3.0f, 2.0f, 1.0f, 3.0f, 2.0f};
  const std::vector<TokenTally> counts = {0, 5, 0};
  const SampleRow rules[2] = {};
  PenaltyRow penalties[2];
  penalties[1] = {0, 0, 0, 1.0f, 1.0f, 0.0f};  // the second row loses its likeliest token
  int32_t tokens[2] = {-2, -2};
  SampleParams p{logits.data(), tokens, rules, nullptr, nullptr, 3, 2, 3};
  p.penalties = penalties;
  p.counts = counts.data();
  sample(p, {nullptr, 2});
  EXPECT_EQ(tokens[0], 1);
  EXPECT_EQ(tokens[1], 2);
}

FASTLLM_INSTANTIATE_ARMS(SamplePenalty);

template <typename Fn>
Fn Op(OpId op) {
  return *BuiltinOps().Resolve<Fn>({op, Device::kCpu, DType::kF32});
}

TEST(CountTokens, CountsPromptAndOutputAndStopsAtTheMost) {
  std::vector<TokenTally> counts = {9, 9, 9, kMostCounted - 1, 9, 0, 0, 0};  // two rows of 4
  const std::vector<int32_t> ids = {1, 1, 2, 2, 3, 3, 3, 0};
  const CountSegment segments[] = {{1, 0, 3, 2, true}, {0, 4, 8, 0, false}};
  const CountTokensParams p{counts.data(), segments, ids.data(), 2, 2, 4};
  Op<CountTokensFn>(OpId::kCountTokens)(p, {});
  EXPECT_EQ(counts, std::vector<TokenTally>({10, 9, 9, kMostCounted, 0, kTallyInPrompt, 1, 0}));
}

TEST(CountTokens, RefusesRowsAndIdsOutside) {
  std::vector<TokenTally> counts(4);
  const std::vector<int32_t> ids = {4};
  CountSegment segment{0, 0, 1, 0, false};
  const CountTokensParams p{counts.data(), &segment, ids.data(), 1, 1, 4};
  EXPECT_THROW(Op<CountTokensFn>(OpId::kCountTokens)(p, {}), InternalError);
  segment = {1, 0, 0, 0, true};
  EXPECT_THROW(Op<CountTokensFn>(OpId::kCountTokens)(p, {}), InternalError);
}

TEST(KeepTokens, CountsWhatItKeepsAsOutput) {
  std::vector<int32_t> last = {0, 0};
  const std::vector<int32_t> tokens = {2, 1, -1}, slots = {1, 0, -1};
  std::vector<int32_t> rows = {1, -1, 0};
  std::vector<TokenTally> counts(6);
  const auto keep = Op<KeepTokensFn>(OpId::kKeepTokens);
  keep({last.data(), tokens.data(), slots.data(), 3, 2, counts.data(), rows.data(), 2, 3}, {});
  EXPECT_EQ(last, std::vector<int32_t>({1, 2}));
  EXPECT_EQ(counts, std::vector<TokenTally>({1, 0, 0, 0, 0, 1}));
  rows[0] = 2;
  EXPECT_THROW(keep({last.data(), tokens.data(), slots.data(), 3, 2, counts.data(), rows.data(), 2, 3}, {}),
               InternalError);
}

}  // namespace
}  // namespace fastllm::ops
