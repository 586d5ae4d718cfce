// Penalties, biases and logprobs of the device's runner, with the CPU as its device: steps are launched before the one
// before is read, so that the host does not know the tokens that they are about.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/runtime/model/device_runner_fixture.h"

namespace fastllm::runtime {
namespace {

using testing::AddRow;
using testing::Prompt;
using testing::ReferenceGreedy;
using testing::ReferenceModel;
using testing::Runner;
using testing::Sequence;
using testing::Step;
using testing::TinyConfig;
using testing::TinyWeights;

class Drawn : public ::testing::TestWithParam<bool> {};

// Greedy tokens of the float64 reference with the penalties and biases of the spec.
std::vector<TokenId> ReferencePenalized(std::vector<TokenId> tokens, int32_t steps, const LogitsSpec& spec) {
  const ModelConfig config = TinyConfig();
  const auto weights = TinyWeights(config, 3);
  const ReferenceModel model(config, *weights);
  const auto prompt = static_cast<int64_t>(tokens.size());
  for (int32_t i = 0; i < steps; ++i) {
    auto x = model.Logits(tokens).back();
    for (const LogitBias& b : spec.logit_bias) x[b.id] += b.bias;
    for (size_t id = 0; id < x.size(); ++id) {
      const auto outputs = std::count(tokens.begin() + prompt, tokens.end(), static_cast<TokenId>(id));
      if (std::count(tokens.begin(), tokens.end(), static_cast<TokenId>(id)) == 0) continue;
      x[id] = x[id] > 0 ? x[id] / spec.repetition_penalty : x[id] * spec.repetition_penalty;
      x[id] -= spec.frequency_penalty * static_cast<double>(outputs) + (outputs > 0 ? spec.presence_penalty : 0.0f);
    }
    tokens.push_back(static_cast<TokenId>(std::max_element(x.begin(), x.end()) - x.begin()));
  }
  return {tokens.begin() + prompt, tokens.end()};
}

std::vector<LogitsSpec> PenaltySpecs() {
  std::vector<LogitsSpec> specs(4);
  specs[0].repetition_penalty = 1.8f;
  specs[1].frequency_penalty = 1.5f;
  specs[1].presence_penalty = -0.5f;
  specs[1].logit_bias = {{7, 1.0f}, {11, -3.0f}};
  specs[2].presence_penalty = 2.0f;
  specs[3].logit_bias = {{3, 1.5f}, {40, 0.5f}};
  return specs;
}

// Each step launched before the one before is finished: the host cannot know what is to be penalised. One row has none;
// the second round of sequences meets the tallies of the first in its slots.
TEST_P(Drawn, PenaltiesKnowTokensThatTheHostDoesNot) {
  constexpr int32_t kSteps = 14;
  const auto specs = PenaltySpecs();
  const auto runner = Runner(/*eager=*/GetParam());
  PendingStep steps[2];
  for (int32_t round = 0; round < 2; ++round) {
    std::vector<std::vector<TokenId>> got(specs.size() + 1);
    const auto take = [&](PendingStep& step) {
      step.Finish();
      ASSERT_TRUE(step.result.status.ok()) << step.result.status.ToString();
      for (size_t r = 0; r < got.size(); ++r) got[r].push_back(step.result.rows.at(r).tokens.at(0));
    };
    for (int32_t i = 0; i < kSteps; ++i) {
      StepPlan plan;
      for (size_t r = 0; r < got.size(); ++r) {
        const auto id = static_cast<RequestId>(10 * round + r + 1);
        const int32_t salt = static_cast<int32_t>(r) + 7 * round, length = 9 + 3 * static_cast<int32_t>(r);
        if (i == 0) {
          if (round > 0) plan.removed.push_back(r + 1);
          NewSequence s = Sequence(id, Prompt(length, salt), length + kSteps);
          if (r < specs.size()) s.sampling.logits = specs[r];
          plan.added.push_back(std::move(s));
        } else {
          plan.diffs.push_back({id, length + i - 1, {{}}});
        }
        AddRow(plan, id, i == 0 ? length : 1, true);
      }
      runner->Launch(plan, &steps[i % 2]);
      if (i > 0) take(steps[(i - 1) % 2]);
    }
    take(steps[(kSteps - 1) % 2]);
    for (size_t r = 0; r < got.size(); ++r) {
      const int32_t salt = static_cast<int32_t>(r) + 7 * round, length = 9 + 3 * static_cast<int32_t>(r);
      const LogitsSpec spec = r < specs.size() ? specs[r] : LogitsSpec();
      EXPECT_EQ(got[r], ReferencePenalized(Prompt(length, salt), kSteps, spec)) << "round " << round << " row " << r;
    }
  }
}

// A row that the host samples (it asks for the logprobs of listed ids) comes and goes beside rows with penalties on the
// device: neither changes the other's tokens. A resumed sequence is counted anew, its output as output.
TEST(DeviceRunner, RowsOfTheHostAndOfTheDeviceShareSteps) {
  const auto specs = PenaltySpecs();
  const auto runner = Runner();
  constexpr int32_t kSteps = 9;
  std::vector<TokenId> penalized, plain;
  for (int32_t i = 0; i < kSteps; ++i) {
    StepPlan plan;
    const bool with_host = i % 3 != 0;
    if (i == 0 || i == 5) {  // at 5 as after a preemption
      if (i == 5) plan.removed.push_back(1);
      std::vector<TokenId> tokens = Prompt(8, 1);
      tokens.insert(tokens.end(), penalized.begin(), penalized.end());
      const auto known = static_cast<int32_t>(tokens.size());
      NewSequence s = Sequence(i == 0 ? 1 : 3, std::move(tokens), 8 + kSteps);
      s.num_prompt_tokens = 8;
      s.sampling.logits = specs[1];
      plan.added.push_back(std::move(s));
      AddRow(plan, i == 0 ? 1 : 3, known, true);
    } else {
      plan.diffs.push_back({i < 5 ? 1u : 3u, 8 + i - 1, {{}}});
      AddRow(plan, i < 5 ? 1 : 3, 1, true);
    }
    if (with_host) {
      const RequestId id = 97 + i;  // blocks of its own
      if (i % 3 == 1) {
        NewSequence s = Sequence(id, Prompt(6, 2), 9);
        s.sampling.logprobs = LogprobsSpec{2, {1}};
        plan.added.push_back(std::move(s));
        AddRow(plan, id, 6, true);
      } else {
        plan.diffs.push_back({id - 1, 6, {{}}});
        AddRow(plan, id - 1, 1, true);
      }
    } else if (i > 0) {
      plan.removed.push_back(97 + i - 2);
    }
    const StepResult result = Step(*runner, plan);
    ASSERT_TRUE(result.status.ok()) << result.status.ToString();
    penalized.push_back(result.rows.at(0).tokens.at(0));
    EXPECT_TRUE(result.rows.at(0).logprobs.empty());
    if (!with_host) continue;
    ASSERT_EQ(result.rows.at(1).logprobs.size(), 1u);
    EXPECT_EQ(result.rows.at(1).tokens.at(0), ReferenceGreedy(Prompt(6, 2), 2)[i % 3 - 1]);
  }
  EXPECT_EQ(penalized, ReferencePenalized(Prompt(8, 1), kSteps, specs[1]));
}

// Logprobs of what the device draws, read late; one row of three asks for none, one has penalties, which raw logprobs
// do not see.
TEST_P(Drawn, LogprobsComeBackWithTheTokens) {
  constexpr int32_t kRows = 3, kSteps = 6, kTops = 4;
  const ModelConfig config = TinyConfig();
  const auto weights = TinyWeights(config, 3);
  const ReferenceModel model(config, *weights);
  const auto runner = Runner(/*eager=*/GetParam());
  std::vector<std::vector<TokenId>> tokens(kRows);
  PendingStep steps[2];
  const auto take = [&](PendingStep& step) {
    step.Finish();
    ASSERT_TRUE(step.result.status.ok()) << step.result.status.ToString();
    for (int32_t r = 0; r < kRows; ++r) {
      const SampledRow& row = step.result.rows.at(r);
      auto x = model.Logits(tokens[r]).back();
      tokens[r].push_back(row.tokens.at(0));
      if (r == 1) {
        EXPECT_TRUE(row.logprobs.empty());
        continue;
      }
      ASSERT_EQ(row.logprobs.size(), 1u);
      const PositionLogprobs& got = row.logprobs[0];
      double sum = 0.0;
      for (const double v : x) sum += std::exp(v);
      const auto above = [&](double v) { return std::count_if(x.begin(), x.end(), [v](double w) { return w > v; }); };
      EXPECT_EQ(got.at(0).token_id, tokens[r].back());
      EXPECT_EQ(got.at(0).rank, 1 + above(x[tokens[r].back()]));
      EXPECT_EQ(got.size(), static_cast<size_t>(got.at(0).rank <= kTops ? kTops : kTops + 1));
      for (const TokenLogprob& e : got) {
        EXPECT_NEAR(e.logprob, x[e.token_id] - std::log(sum), 2e-4);
        EXPECT_EQ(e.rank, 1 + above(x[e.token_id]));
      }
    }
  };
  for (int32_t i = 0; i < kSteps; ++i) {
    StepPlan plan;
    for (int32_t r = 0; r < kRows; ++r) {
      const auto id = static_cast<RequestId>(r + 1);
      const int32_t length = 9 + 3 * r;
      if (i == 0) {
        tokens[r] = Prompt(length, r);
        NewSequence s = Sequence(id, tokens[r], length + kSteps);
        if (r != 1) s.sampling.logprobs = LogprobsSpec{kTops, {}};
        if (r == 2) s.sampling.logits = PenaltySpecs()[2];
        plan.added.push_back(std::move(s));
      } else {
        plan.diffs.push_back({id, length + i - 1, {{}}});
      }
      AddRow(plan, id, i == 0 ? length : 1, true);
    }
    runner->Launch(plan, &steps[i % 2]);
    if (i > 0) take(steps[(i - 1) % 2]);
  }
  take(steps[(kSteps - 1) % 2]);
}

INSTANTIATE_TEST_SUITE_P(Eager, Drawn, ::testing::Bool());

}  // namespace
}  // namespace fastllm::runtime
