// The engine's own loop allocates nothing while a load is steady: scheduler, plan, result, text, deltas and statistics.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <vector>

#include "alloc_counter.h"
#include "core/engine/engine_core.h"
#include "engine_fixture.h"

namespace fastllm {
namespace {

// An executor that needs no memory once its sequences are known. On the engine thread, at chosen steps, it counts.
class CountingExecutor : public Executor {
 public:
  static constexpr int kFirst = 200, kLast = 700;  // steps

  CountingExecutor(std::function<void()> each_step, std::promise<int64_t>* allocations)
      : each_step_(std::move(each_step)), allocations_(allocations) {}

  void Submit(const StepPlan& plan) override { plans_[submitted_++ % 2] = &plan; }

  void Wait(StepResult* result) override {
    const StepPlan& plan = *plans_[waited_++ % 2];
    result->step_id = plan.step_id;
    result->status = Status();
    size_t num_rows = 0;
    for (const ScheduledRow& row : plan.rows) {
      if (!row.sample) continue;
      if (num_rows == result->rows.size()) result->rows.emplace_back();
      result->rows[num_rows].id = row.id;
      result->rows[num_rows++].tokens.assign(1, static_cast<TokenId>(waited_ % 8));
    }
    result->rows.resize(num_rows);
    each_step_();
    if (waited_ == kFirst) counter_.emplace();
    if (waited_ != kLast) return;
    const int64_t count = counter_->count();
    counter_.reset();
    allocations_->set_value(count);
  }

 private:
  std::function<void()> each_step_;
  std::promise<int64_t>* allocations_;
  std::array<const StepPlan*, 2> plans_ = {};
  int submitted_ = 0;
  int waited_ = 0;
  std::optional<AllocCounter> counter_;
};

// `host` is called on the engine thread in every step, so that what a host does is the same in every run.
int64_t CountSteadySteps(const std::function<void(EngineCore*, int)>& host) {
  SchedConfig sched = Sched(64);
  sched.max_num_batched_tokens = 1024;
  sched.max_model_len = 2000;
  KvConfig kv = Kv(20000);
  std::promise<int64_t> allocations;
  std::atomic<EngineCore*> self{nullptr};
  int step = 0;
  auto executor = std::make_unique<CountingExecutor>([&] { host(self, step++); }, &allocations);
  EngineCore engine(sched, kv, std::move(executor), Letters());
  self = &engine;
  EXPECT_TRUE(engine.Pause(PauseMode::kWait).ok());
  for (RequestId id = 1; id <= 64; ++id) {
    auto request = MakeRequest(id, Ids(20, static_cast<TokenId>(id % 8)), 900);
    if (id % 2 == 0) request->sampling.stop = {"zz"};
    EXPECT_TRUE(engine.Add(request).ok());
  }
  EXPECT_TRUE(engine.Resume().ok());
  return allocations.get_future().get();
}

TEST(EngineAlloc, AHostThatDrainsEveryStepMakesTheLoopAllocateNothing) {
  std::vector<RequestDelta> deltas;
  int64_t num_tokens = 0;
  const int64_t allocations = CountSteadySteps([&](EngineCore* engine, int) {
    engine->DrainInto(milliseconds(0), &deltas);
    for (const RequestDelta& d : deltas) num_tokens += static_cast<int64_t>(d.token_ids.size());
  });
  EXPECT_EQ(allocations, 0);
  EXPECT_GT(num_tokens, 64 * 650);
}

TEST(EngineAlloc, NewsThatJoinsOlderNewsAllocatesNothingOnceTheHostsPaceIsKnown) {
  std::vector<RequestDelta> deltas;
  const int64_t allocations = CountSteadySteps([&](EngineCore* engine, int step) {
    if (step % 3 == 0) engine->DrainInto(milliseconds(0), &deltas);
  });
  EXPECT_EQ(allocations, 0);
}

}  // namespace
}  // namespace fastllm
