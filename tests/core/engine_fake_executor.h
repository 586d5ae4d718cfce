// FakeExecutor: an Executor without a model. The next token is a function of the sequence's tokens, so what a request
// must produce is known whatever the scheduler does. It keeps its own copy of every sequence, as a rank does, and
// checks that plans agree with it; every plan and result goes through the codec.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/engine/executor.h"
#include "core/step/codec.h"

namespace fastllm {

class FakeExecutor : public Executor {
 public:
  using NextToken = std::function<TokenId(std::span<const TokenId> tokens, size_t num_prompt)>;
  using Hook = std::function<void(StepResult*)>;  // called in Wait() before it returns; may block, change or throw

  explicit FakeExecutor(NextToken next_token, Hook hook = {})
      : next_token_(std::move(next_token)), hook_(std::move(hook)) {}

  void Submit(const StepPlan& plan) override {
    auto copy = DecodeStepPlan(EncodeStepPlan(plan));
    ASSERT_TRUE(copy.ok()) << copy.status().ToString();
    plans_.push_back(std::move(copy).value());
  }

  void Wait(StepResult* out) override {
    const StepPlan plan = std::move(plans_.front());
    plans_.pop_front();
    StepResult result = Execute(plan);
    if (hook_) hook_(&result);
    *out = std::move(DecodeStepResult(EncodeStepResult(result))).value();
  }

 private:
  struct Held {
    std::vector<TokenId> tokens;
    int32_t num_prompt = 0;
    int32_t num_computed = 0;
    bool logprobs = false;         // asked for
    bool prompt_logprobs = false;  // asked for, and its prompt is all there is
  };

  // What a request must get: the token at place p of a sequence has logprob -p, the next higher id -p - 0.5.
  static PositionLogprobs Logprobs(TokenId token, size_t place) {
    const auto p = static_cast<float>(place);
    return {{token, -p, 1}, {token + 1, -p - 0.5f, 2}};
  }

  static void AddPromptLogprobs(RequestId id, const Held& held, int32_t num_tokens, StepResult* result) {
    PromptLogprobs out{id, held.num_computed + 1, {}};
    for (int32_t p = out.first_position; p <= held.num_computed + num_tokens && p < held.num_prompt; ++p) {
      out.positions.push_back(Logprobs(held.tokens[p], p));
    }
    if (!out.positions.empty()) result->prompt_logprobs.push_back(std::move(out));
  }

  StepResult Execute(const StepPlan& plan) {
    for (const RequestId id : plan.removed) EXPECT_EQ(held_.erase(id), 1u) << "removed an unknown sequence " << id;
    for (const NewSequence& s : plan.added) {
      const bool prompt_only = static_cast<int32_t>(s.tokens.size()) == s.num_prompt_tokens;
      const Held held{s.tokens, s.num_prompt_tokens, s.num_computed_tokens, s.sampling.logprobs.has_value(),
                      s.sampling.prompt_logprobs.has_value() && prompt_only};
      EXPECT_TRUE(held_.try_emplace(s.id, held).second);
    }
    for (const SequenceDiff& d : plan.diffs) EXPECT_EQ(held_.at(d.id).num_computed, d.num_computed_tokens);
    StepResult result;
    result.step_id = plan.step_id;
    for (const ScheduledRow& row : plan.rows) {
      Held& held = held_.at(row.id);
      if (held.prompt_logprobs) AddPromptLogprobs(row.id, held, row.num_tokens, &result);
      held.num_computed += row.num_tokens;
      EXPECT_EQ(row.sample, held.num_computed == static_cast<int32_t>(held.tokens.size()));
      if (!row.sample) continue;
      const TokenId token = next_token_(held.tokens, static_cast<size_t>(held.num_prompt));
      result.rows.push_back({row.id, {token}});
      if (held.logprobs) result.rows.back().logprobs = {Logprobs(token, held.tokens.size())};
      held.tokens.push_back(token);
    }
    return result;
  }

  NextToken next_token_;
  Hook hook_;
  std::deque<StepPlan> plans_;
  std::unordered_map<RequestId, Held> held_;
};

}  // namespace fastllm
