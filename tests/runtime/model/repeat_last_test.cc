// Sequences that come with all of their KV in blocks of others: the last token alone is computed, reads its own KV from
// the cache and writes none. On both runners, against the tokens and bits of whole prompts.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/runner/device_runner.h"
#include "runtime/runner/model_runner.h"
#include "tests/runtime/model/device_runner_fixture.h"

namespace fastllm::runtime {
namespace {

using testing::AddRow;
using testing::kBlockSize;
using testing::Prompt;
using testing::ReferenceGreedy;
using testing::Sequence;
using testing::TinyConfig;
using testing::TinyOptions;
using testing::TinySource;

constexpr int32_t kLength = 3 * kBlockSize;

std::unique_ptr<StepRunner> MakeRunner(const std::string& kind) {
  RunnerOptions options = TinyOptions();
  options.enforce_eager = kind == "device_eager";
  std::unique_ptr<StepRunner> runner;
  if (kind == "host") {
    auto made = ModelRunner::Create(TinySource(), options, nullptr);
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    runner = std::move(made).value();
  } else {
    auto made = DeviceRunner::Create(TinySource(), options, nullptr);
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    runner = std::move(made).value();
  }
  return runner;
}

// Of `tokens`, in the blocks of a sequence that has computed them.
NewSequence Repeat(RequestId id, std::vector<TokenId> tokens, const NewSequence& of) {
  NewSequence s = Sequence(id, std::move(tokens), kLength + kBlockSize);
  s.num_computed_tokens = kLength - 1;
  s.repeats_last = true;
  std::copy_n(of.block_ids[0].begin(), kLength / kBlockSize, s.block_ids[0].begin());
  return s;
}

class RepeatLast : public ::testing::TestWithParam<const char*> {
 protected:
  std::vector<TokenId> Run(const StepPlan& plan) {
    PendingStep step;
    runner_->Launch(plan, &step);
    step.Finish();
    EXPECT_TRUE(step.result.status.ok()) << step.result.status.ToString();
    std::vector<TokenId> tokens;
    for (const SampledRow& row : step.result.rows) tokens.push_back(row.tokens.at(0));
    return tokens;
  }

  std::unique_ptr<StepRunner> runner_ = MakeRunner(GetParam());
  const std::vector<TokenId> prompt_ = Prompt(kLength, 4);
  const NewSequence first_ = Sequence(1, prompt_, kLength + kBlockSize);
};

TEST_P(RepeatLast, TokensAndWhatFollowsAreThoseOfTheWholePrompt) {
  StepPlan plan;
  plan.added = {first_};
  AddRow(plan, 1, kLength, true);
  std::vector<std::vector<TokenId>> got = {Run(plan)};
  // Two in one step, beside the decode of the first.
  StepPlan next;
  next.diffs = {{1, kLength, {{}}}};
  next.added = {Repeat(2, prompt_, first_), Repeat(3, prompt_, first_)};
  for (RequestId id = 1; id <= 3; ++id) AddRow(next, id, 1, true);
  got.push_back(Run(next));
  for (int32_t i = 0; i < 3; ++i) {
    StepPlan decode;
    for (RequestId id = 1; id <= 3; ++id) {
      decode.diffs.push_back({id, kLength + i + (id == 1 ? 1 : 0), {{}}});
      AddRow(decode, id, 1, true);
    }
    got.push_back(Run(decode));
  }
  const std::vector<TokenId> want = ReferenceGreedy(prompt_, 5);
  EXPECT_EQ(got[0][0], want[0]);
  for (int32_t i = 1; i <= 4; ++i) {
    EXPECT_EQ(got[i], (std::vector<TokenId>{want[i], want[i - 1], want[i - 1]})) << i;
  }
}

// As followers do: the blocks are filled in the step that they are read in.
TEST_P(RepeatLast, TheBlocksMayBeFilledInTheSameStep) {
  StepPlan plan;
  plan.added = {first_, Repeat(2, prompt_, first_)};
  AddRow(plan, 1, kLength, true);
  AddRow(plan, 2, 1, true);
  const TokenId want = ReferenceGreedy(prompt_, 1)[0];
  EXPECT_EQ(Run(plan), (std::vector<TokenId>{want, want}));
}

TEST_P(RepeatLast, LogitsAreTheBitsOfTheWholePrompt) {
  std::vector<float> whole, last;
  StepPlan plan;
  plan.added = {first_};
  AddRow(plan, 1, kLength, true);
  ASSERT_TRUE(runner_->ExecuteForLogits(plan, &whole).ok());
  StepPlan next;
  next.added = {Repeat(2, prompt_, first_)};
  AddRow(next, 2, 1, true);
  ASSERT_TRUE(runner_->ExecuteForLogits(next, &last).ok());
  ASSERT_EQ(last.size(), static_cast<size_t>(TinyConfig().vocab_size));
  EXPECT_EQ(last, std::vector<float>(whole.end() - static_cast<ptrdiff_t>(last.size()), whole.end()));
}

// One that claims a block of another last token: its own KV would show in what the first goes on with.
TEST_P(RepeatLast, NothingIsWrittenToTheSharedBlock) {
  for (const bool repeats : {true, false}) {
    runner_ = MakeRunner(GetParam());
    std::vector<float> prompt, logits;
    StepPlan plan;
    plan.added = {first_};
    AddRow(plan, 1, kLength, true);
    ASSERT_TRUE(runner_->ExecuteForLogits(plan, &prompt).ok());
    std::vector<TokenId> other = prompt_;
    other.back() = (other.back() + 17) % 61;
    StepPlan wrong;
    wrong.added = {Repeat(2, other, first_)};
    wrong.added[0].repeats_last = repeats;
    AddRow(wrong, 2, 1, true);
    ASSERT_TRUE(runner_->ExecuteForLogits(wrong, &logits).ok());
    // The first prompt's last token again.
    StepPlan again;
    again.removed = {2};
    again.added = {Repeat(3, prompt_, first_)};
    AddRow(again, 3, 1, true);
    logits.clear();
    ASSERT_TRUE(runner_->ExecuteForLogits(again, &logits).ok());
    const std::vector<float> want(prompt.end() - static_cast<ptrdiff_t>(logits.size()), prompt.end());
    EXPECT_EQ(logits == want, repeats);
  }
}

INSTANTIATE_TEST_SUITE_P(Runners, RepeatLast, ::testing::Values("host", "device", "device_eager"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace fastllm::runtime
