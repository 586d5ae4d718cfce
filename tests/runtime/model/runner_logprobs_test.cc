// Log probabilities of prompt and output tokens through the runner, against the float64 reference model.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/runner/model_runner.h"
#include "tests/runtime/model/runner_support.h"

namespace fastllm::runtime {
namespace {

using testing::ReferenceModel;
using testing::TinyConfig;
using testing::TinyWeights;

std::unique_ptr<ModelRunner> Runner() {
  auto r = ModelRunner::Create(testing::TinySource(), testing::TinyOptions(), nullptr);
  EXPECT_TRUE(r.ok()) << r.status().ToString();
  return std::move(r).value();
}

NewSequence Sequence(RequestId id, int32_t length) {
  NewSequence s = testing::Sequence(id, testing::Prompt(length, static_cast<int32_t>(id)), length);
  s.sampling.prompt_logprobs = 3;
  s.sampling.logprobs = LogprobsSpec{2, {}};
  return s;
}

std::vector<double> LogSoftmax(const std::vector<double>& x) {
  const double max = *std::ranges::max_element(x);
  double sum = 0;
  for (const double v : x) sum += std::exp(v - max);
  std::vector<double> out;
  for (const double v : x) out.push_back(v - max - std::log(sum));
  return out;
}

void ExpectPosition(const PositionLogprobs& got, TokenId token, const std::vector<double>& logprobs, size_t num_top) {
  ASSERT_GE(got.size(), num_top);
  ASSERT_LE(got.size(), num_top + 1);
  EXPECT_EQ(got[0].token_id, token);
  for (const TokenLogprob& e : got) EXPECT_NEAR(e.logprob, logprobs[e.token_id], 1e-4);
  EXPECT_EQ(std::ranges::max(got, {}, &TokenLogprob::logprob).token_id,
            std::ranges::max_element(logprobs) - logprobs.begin());
}

class PromptLogprobChunks : public ::testing::TestWithParam<int32_t> {};

// Two prompts side by side, cut into chunks.
TEST_P(PromptLogprobChunks, EqualTheReferenceAtEveryPosition) {
  const ModelConfig config = TinyConfig();
  const auto weights = TinyWeights(config, 3);
  const ReferenceModel reference(config, *weights);
  const auto runner = Runner();
  const std::vector<NewSequence> sequences = {Sequence(1, 45), Sequence(2, 17)};
  std::map<RequestId, std::vector<PositionLogprobs>> prompt;
  std::map<RequestId, std::pair<TokenId, PositionLogprobs>> first;
  std::vector<int32_t> done(2, 0);
  while (done[0] < 45 || done[1] < 17) {
    StepPlan plan;
    for (size_t i = 0; i < 2; ++i) {
      const NewSequence& s = sequences[i];
      const int32_t count = std::min(GetParam(), s.num_prompt_tokens - done[i]);
      if (count == 0) continue;
      if (done[i] == 0)
        plan.added.push_back(s);
      else
        plan.diffs.push_back({s.id, done[i], {{}}});
      done[i] += count;
      plan.rows.push_back({s.id, count, done[i] == s.num_prompt_tokens});
      plan.total_tokens += count;
    }
    // A sequence that has sampled is not in the plan any more; it simply waits.
    const StepResult result = runner->Execute(plan);
    ASSERT_TRUE(result.status.ok()) << result.status.ToString();
    for (const PromptLogprobs& p : result.prompt_logprobs) {
      EXPECT_EQ(p.first_position, 1 + static_cast<int32_t>(prompt[p.id].size()));
      prompt[p.id].insert(prompt[p.id].end(), p.positions.begin(), p.positions.end());
    }
    for (const SampledRow& row : result.rows) first[row.id] = {row.tokens[0], row.logprobs.at(0)};
  }
  for (const NewSequence& s : sequences) {
    const auto logits = reference.Logits(s.tokens);
    ASSERT_EQ(prompt[s.id].size(), s.tokens.size() - 1);
    for (size_t p = 1; p < s.tokens.size(); ++p) {
      ExpectPosition(prompt[s.id][p - 1], s.tokens[p], LogSoftmax(logits[p - 1]), 3);
    }
    ExpectPosition(first[s.id].second, first[s.id].first, LogSoftmax(logits.back()), 2);
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, PromptLogprobChunks, ::testing::Values(1, 7, 16, 64));

TEST(RunnerLogprobs, AResumedSequenceHasGivenItsPromptLogprobs) {
  NewSequence s = Sequence(1, 12);
  s.num_prompt_tokens = 9;
  StepPlan plan;
  plan.added.push_back(s);
  plan.rows.push_back({1, 12, true});
  plan.total_tokens = 12;
  const StepResult result = Runner()->Execute(plan);
  ASSERT_TRUE(result.status.ok()) << result.status.ToString();
  EXPECT_TRUE(result.prompt_logprobs.empty());
  EXPECT_EQ(result.rows[0].logprobs.size(), 1u);
}

TEST(RunnerLogprobs, APlanThatSkipsPromptTokensIsRefused) {
  NewSequence s = Sequence(1, 12);
  s.num_computed_tokens = 4;
  StepPlan plan;
  plan.added.push_back(s);
  plan.rows.push_back({1, 8, true});
  plan.total_tokens = 8;
  EXPECT_EQ(Runner()->Execute(plan).status.code(), StatusCode::kInternal);
}

}  // namespace
}  // namespace fastllm::runtime
