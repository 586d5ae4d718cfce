// The device's runner with the CPU as its device: what is staged, fed forward and read back late gives the tokens and
// logits of the float64 reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "runtime/runner/device_runner.h"
#include "tests/runtime/model/device_runner_fixture.h"
#include "tests/runtime/model/tiny_model.h"

namespace fastllm::runtime {
namespace {

using testing::AddRow;
using testing::Options;
using testing::Prompt;
using testing::ReferenceGreedy;
using testing::ReferenceModel;
using testing::Runner;
using testing::Sequence;
using testing::Step;
using testing::TinyConfig;
using testing::TinySource;
using testing::TinyWeights;

TEST(DeviceRunner, LogitsEqualTheReferenceAtEveryPosition) {
  const ModelConfig config = TinyConfig();
  const auto weights = TinyWeights(config, 3);
  const auto tokens = Prompt(45, 1);
  const auto want = ReferenceModel(config, *weights).Logits(tokens);
  for (const int32_t chunk : {7, 45}) {
    const auto runner = Runner();
    std::vector<float> got;
    for (int32_t done = 0; done < 45; done += chunk) {
      StepPlan plan;
      const int32_t count = std::min(chunk, 45 - done);
      if (done == 0) {
        plan.added.push_back(Sequence(5, tokens, 45));
      } else {
        plan.diffs.push_back({5, done, {{}}});
      }
      AddRow(plan, 5, count, done + count == 45);
      const Status status = runner->ExecuteForLogits(plan, &got);
      ASSERT_TRUE(status.ok()) << status.ToString();
    }
    ASSERT_EQ(got.size(), want.size() * config.vocab_size);
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(got[i], want[i / config.vocab_size][i % config.vocab_size], 1e-4) << "chunk " << chunk;
    }
  }
}

class Decode : public ::testing::TestWithParam<bool> {};

// Five sequences (a size that is padded), each step launched before the one before is finished: the ids can only have
// come over the device's own feed.
TEST_P(Decode, TokensFeedTheNextStepWithoutTheHost) {
  constexpr int32_t kRows = 5, kSteps = 12;
  const auto runner = Runner(/*eager=*/GetParam());
  std::vector<std::vector<TokenId>> got(kRows);
  const auto take = [&](PendingStep& step) {
    step.Finish();
    const StepResult& result = step.result;
    ASSERT_TRUE(result.status.ok()) << result.status.ToString();
    ASSERT_EQ(result.rows.size(), static_cast<size_t>(kRows));
    for (int32_t r = 0; r < kRows; ++r) {
      EXPECT_EQ(result.rows[r].id, static_cast<RequestId>(r + 1));
      got[r].push_back(result.rows[r].tokens.at(0));
    }
  };
  PendingStep steps[2];  // used by turns, as the executor does
  for (int32_t i = 0; i < kSteps; ++i) {
    StepPlan plan;
    plan.step_id = i;
    for (int32_t r = 0; r < kRows; ++r) {
      const auto id = static_cast<RequestId>(r + 1);
      const int32_t length = 9 + 3 * r;
      if (i == 0) {
        plan.added.push_back(Sequence(id, Prompt(length, r), length + kSteps));
      } else {
        plan.diffs.push_back({id, length + i - 1, {{}}});
      }
      AddRow(plan, id, i == 0 ? length : 1, true);
    }
    runner->Launch(plan, &steps[i % 2]);
    if (i > 0) take(steps[(i - 1) % 2]);
  }
  take(steps[(kSteps - 1) % 2]);
  for (int32_t r = 0; r < kRows; ++r) EXPECT_EQ(got[r], ReferenceGreedy(Prompt(9 + 3 * r, r), kSteps)) << r;
}

INSTANTIATE_TEST_SUITE_P(Eager, Decode, ::testing::Bool());

TEST(DeviceRunner, RemovedSequencesGiveTheirSlotsBack) {
  const auto runner = Runner();
  const auto want = ReferenceGreedy(Prompt(6, 2), 1);
  for (RequestId id = 1; id <= 40; ++id) {  // more than there are slots
    StepPlan plan;
    if (id > 1) plan.removed.push_back(id - 1);
    plan.added.push_back(Sequence(id, Prompt(6, 2), 8));
    AddRow(plan, id, 6, true);
    const StepResult result = Step(*runner, plan);
    ASSERT_TRUE(result.status.ok()) << result.status.ToString();
    EXPECT_EQ(result.rows.at(0).tokens, want);
  }
}

TEST(DeviceRunner, BannedIdsAreNotPicked) {
  const auto runner = Runner();
  const TokenId best = ReferenceGreedy(Prompt(6, 2), 1)[0];
  StepPlan plan;
  NewSequence s = Sequence(1, Prompt(6, 2), 8);
  s.sampling.min_tokens = 1;
  s.sampling.banned_until_min = {best};
  plan.added.push_back(std::move(s));
  AddRow(plan, 1, 6, true);
  const StepResult result = Step(*runner, plan);
  ASSERT_TRUE(result.status.ok()) << result.status.ToString();
  EXPECT_NE(result.rows.at(0).tokens.at(0), best);
}

// More banned ids than a row may bring: it is sampled on the host, with the same outcome.
TEST(DeviceRunner, RowsWithLongListsAreSampledOnTheHost) {
  const auto runner = Runner();
  const TokenId best = ReferenceGreedy(Prompt(6, 2), 1)[0];
  StepPlan plan;
  for (RequestId id = 1; id <= 2; ++id) {
    NewSequence s = Sequence(id, Prompt(6, 2), 8);
    if (id == 1) {
      s.sampling.min_tokens = 1;
      s.sampling.banned_until_min.assign(20000, best);
    }
    plan.added.push_back(std::move(s));
    AddRow(plan, id, 6, true);
  }
  const StepResult result = Step(*runner, plan);
  ASSERT_TRUE(result.status.ok()) << result.status.ToString();
  EXPECT_NE(result.rows.at(0).tokens.at(0), best);
  EXPECT_EQ(result.rows.at(1).tokens.at(0), best);
  // What the host picked feeds the next step.
  std::vector<TokenId> known = Prompt(6, 2);
  known.push_back(result.rows.at(0).tokens.at(0));
  StepPlan next;
  next.diffs.push_back({1, 6, {{}}});
  AddRow(next, 1, 1, true);
  EXPECT_EQ(Step(*runner, next).rows.at(0).tokens, ReferenceGreedy(known, 1));
}

TEST(DeviceRunner, TheKvCacheIsSizedAfterTheRestHasItsMemory) {
  RunnerOptions options = Options(false);
  options.kv.num_blocks = 0;
  DeviceMemoryUse seen;
  options.size_kv = [&](const DeviceMemoryUse& use) -> Result<KvConfig> {
    seen = use;
    KvConfig kv = Options(false).kv;
    kv.num_blocks = 17;
    return kv;
  };
  auto runner = DeviceRunner::Create(TinySource(), options, nullptr);
  ASSERT_TRUE(runner.ok()) << runner.status().ToString();
  EXPECT_GT(seen.weight_bytes, 0);
  EXPECT_GT(seen.activation_bytes, 128 * 61 * 4);
  EXPECT_GT(seen.staging_bytes, 0);
  EXPECT_GT(seen.tally_reserve_bytes, int64_t{2 * 8} * 61 * sizeof(ops::TokenTally));  // 8 sequences, 61 tokens
  StepPlan plan;
  NewSequence s = Sequence(1, Prompt(6, 2), 8);
  s.block_ids = {{16, 17}};  // 17 is past the cache
  plan.added.push_back(std::move(s));
  AddRow(plan, 1, 6, true);
  EXPECT_EQ(Step(**runner, plan).status.code(), StatusCode::kInternal);
  options.size_kv = [](const DeviceMemoryUse&) -> Result<KvConfig> { return Status::ResourceExhausted("no room"); };
  EXPECT_EQ(DeviceRunner::Create(TinySource(), options, nullptr).status().message(), "no room");
}

// Sequences come one by one beside the decodes of those before, their prompts in chunks, until there are as many as may
// be: steps that are not pure decode are padded too, in tokens and in sequences.
TEST_P(Decode, MixedStepsGiveTheTokensOfTheReference) {
  constexpr int32_t kRows = 8, kChunk = 7, kTokens = 6;  // 8: max_num_seqs
  const auto runner = Runner(/*eager=*/GetParam());
  std::vector<int32_t> computed(kRows, 0);
  std::vector<std::vector<TokenId>> got(kRows);
  const auto length = [](int32_t r) { return 9 + 2 * r; };
  for (int32_t step = 0; step < kRows + 2 * kTokens; ++step) {
    StepPlan plan;
    plan.step_id = step;
    std::vector<int32_t> sampled;
    for (int32_t r = 0; r < std::min(kRows, step + 1); ++r) {
      const auto id = static_cast<RequestId>(r + 1);
      if (computed[r] == 0) {
        plan.added.push_back(Sequence(id, Prompt(length(r), r), length(r) + 3 * kTokens + kRows));
      } else {
        plan.diffs.push_back({id, computed[r], {{}}});
      }
      const int32_t count = std::min(kChunk, std::max(1, length(r) - computed[r]));
      computed[r] += count;
      AddRow(plan, id, count, computed[r] >= length(r));
      if (computed[r] >= length(r)) sampled.push_back(r);
    }
    const StepResult result = Step(*runner, plan);
    ASSERT_TRUE(result.status.ok()) << result.status.ToString();
    ASSERT_EQ(result.rows.size(), sampled.size());
    for (size_t i = 0; i < sampled.size(); ++i) got[sampled[i]].push_back(result.rows[i].tokens.at(0));
  }
  for (int32_t r = 0; r < kRows; ++r) {
    got[r].resize(kTokens);
    EXPECT_EQ(got[r], ReferenceGreedy(Prompt(length(r), r), kTokens)) << r;
  }
}

}  // namespace
}  // namespace fastllm::runtime
