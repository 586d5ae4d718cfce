// A scheduler with the fake executor behind it, and steps in one call.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "core/sched/scheduler.h"
#include "sched_fake_executor.h"

namespace fastllm {

inline constexpr int32_t kFixtureVocab = 50000;

inline std::vector<TokenId> Range(int32_t count, TokenId first) {
  std::vector<TokenId> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// "id:tokens" of each row, with "*" when the row is sampled.
inline std::string Rows(const StepPlan& plan) {
  std::string text;
  for (const ScheduledRow& row : plan.rows) {
    if (!text.empty()) text += ' ';
    text += std::to_string(row.id);
    text += ':';
    text += std::to_string(row.num_tokens);
    if (row.sample) text += '*';
  }
  return text;
}

class SchedulerTest : public ::testing::Test {
 protected:
  SchedulerTest() {
    sched_.max_num_seqs = 8;
    sched_.max_num_batched_tokens = 64;
    sched_.max_model_len = 1000;
    sched_.long_prefill_fair_share = false;  // has tests of its own
    kv_.num_blocks = 101;
    kv_.block_size = 4;
  }

  Scheduler& scheduler() {
    if (scheduler_ == nullptr) {
      scheduler_ = std::make_unique<Scheduler>(sched_, kv_, [this] { return now_ms_; });
      executor_ = std::make_unique<KvCheckingExecutor>(kv_, kFixtureVocab);
    }
    return *scheduler_;
  }

  std::shared_ptr<Request> Make(RequestId id, std::vector<TokenId> prompt, int32_t max_tokens = 100) {
    auto request = std::make_shared<Request>();
    request->id = id;
    request->prompt = std::move(prompt);
    request->max_tokens = max_tokens;
    return request;
  }

  // Prompts of different ids share no token.
  void Add(RequestId id, int32_t prompt, int32_t max_tokens = 100) {
    ASSERT_TRUE(scheduler().Add(Make(id, Range(prompt, static_cast<TokenId>(id) * 1000), max_tokens)).ok());
  }

  // Plans and runs one step; the plan.
  StepPlan Step() {
    StepPlan plan = scheduler().Schedule();
    if (plan.rows.empty()) return plan;
    for (SequenceUpdate& update : scheduler().Update(plan, executor_->Run(plan))) {
      std::vector<TokenId>& output = outputs_[update.id];
      output.insert(output.end(), update.new_tokens.begin(), update.new_tokens.end());
      updates_[update.id] = update;
    }
    return plan;
  }

  // Plans a step and answers every sampled row with `token`.
  std::vector<SequenceUpdate> StepWith(TokenId token) {
    const StepPlan plan = scheduler().Schedule();
    StepResult result;
    result.step_id = plan.step_id;
    for (const ScheduledRow& row : plan.rows) {
      if (row.sample) result.rows.push_back({row.id, {token}});
    }
    return scheduler().Update(plan, result);
  }

  SchedConfig sched_;
  KvConfig kv_;
  int64_t now_ms_ = 5000;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<KvCheckingExecutor> executor_;
  std::map<RequestId, std::vector<TokenId>> outputs_;
  std::map<RequestId, SequenceUpdate> updates_;
};

// The same with several steps in flight.
class InFlightTest : public SchedulerTest {
 protected:
  // Plans a step and leaves it in flight; its rows.
  std::string Plan() {
    StepPlan plan = scheduler().Schedule();
    std::string rows = Rows(plan);
    if (!plan.rows.empty()) in_flight_.push_back(std::move(plan));
    return rows;
  }

  // Runs the oldest plan in flight and applies its result.
  std::vector<SequenceUpdate> Complete() {
    const StepPlan plan = std::move(in_flight_.front());
    in_flight_.pop_front();
    std::vector<SequenceUpdate> updates = scheduler().Update(plan, executor_->Run(plan));
    for (const SequenceUpdate& update : updates) {
      outputs_[update.id].insert(outputs_[update.id].end(), update.new_tokens.begin(), update.new_tokens.end());
      updates_[update.id] = update;
    }
    return updates;
  }

  // As many steps in flight as there may be at all times, until nothing is left.
  void RunAll() {
    while (scheduler().HasWork()) {
      while (!Plan().empty()) Planned();
      ASSERT_FALSE(in_flight_.empty());
      Complete();
    }
    while (!in_flight_.empty()) Complete();
  }

  // After each plan of RunAll().
  virtual void Planned() {}

  std::vector<TokenId> Model(RequestId id, int32_t prompt, int32_t count) {
    return FakeOutput(*Make(id, Range(prompt, static_cast<TokenId>(id) * 1000)), kFixtureVocab, count);
  }

  std::deque<StepPlan> in_flight_;
};

}  // namespace fastllm
