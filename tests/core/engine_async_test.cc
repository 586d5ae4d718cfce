#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/engine/engine_core.h"
#include "engine_fake_executor.h"
#include "engine_fixture.h"

namespace fastllm {
namespace {

SchedConfig Mode(bool async, SchedConfig sched = Sched()) {
  sched.async_scheduling = async;
  return sched;
}

// Writes down how many plans were in flight at each Wait().
class CountingExecutor : public Executor {
 public:
  explicit CountingExecutor(std::vector<int>* seen) : seen_(seen) {}
  void Submit(const StepPlan& plan) override {
    ++in_flight_;
    inner_.Submit(plan);
  }
  void Wait(StepResult* result) override {
    seen_->push_back(in_flight_--);
    inner_.Wait(result);
  }

 private:
  FakeExecutor inner_{[](std::span<const TokenId> tokens, size_t) { return (tokens.back() + 1) % 8; }};
  std::vector<int>* seen_;
  int in_flight_ = 0;
};

TEST(EngineAsync, TheNextStepIsSubmittedBeforeTheResultOfTheLastIsTaken) {
  for (const bool async : {true, false}) {
    std::vector<int> seen;
    {
      EngineCore engine(Mode(async), Kv(), std::make_unique<CountingExecutor>(&seen), Letters());
      ASSERT_TRUE(engine.Add(MakeRequest(1, {0}, 6)).ok());
      EXPECT_EQ(Collect(&engine, 1)[1].ids, (Ids{1, 2, 3, 4, 5, 6}));
    }
    // No step is spent behind max_tokens: the sixth runs alone.
    EXPECT_EQ(seen, async ? (std::vector<int>{2, 2, 2, 2, 2, 1}) : (std::vector<int>{1, 1, 1, 1, 1, 1}));
  }
}

TEST(EngineAsync, ATokenBehindAStopIsNotDelivered) {
  EngineCore engine(Mode(true), Kv(), std::make_unique<FakeExecutor>(CountUp), Letters());
  auto request = MakeRequest(1, {0}, 50);
  request->sampling.stop = {"cd"};
  ASSERT_TRUE(engine.Add(request).ok());
  ASSERT_TRUE(engine.Add(MakeRequest(2, {6}, 50)).ok());  // h i </s>
  auto outcomes = Collect(&engine, 2);
  EXPECT_EQ(outcomes[1].ids, (Ids{1, 2, 3}));
  EXPECT_EQ(outcomes[1].text, "b");
  EXPECT_EQ(outcomes[2].ids, (Ids{7, 8, kEos}));
  // The step that was under way is still taken, so that the executor is idle and blocks are free.
  ASSERT_TRUE(engine.Pause(PauseMode::kWait).ok());
  EXPECT_EQ(engine.stats().used_blocks, 0);
}

// A token of 0..9 that depends on all tokens before, so that a token fed forward wrongly changes the rest.
TokenId Mixed(std::span<const TokenId> tokens, size_t) {
  uint32_t h = 2166136261u;
  for (const TokenId token : tokens) h = (h ^ static_cast<uint32_t>(token + 1)) * 16777619u;
  return static_cast<TokenId>((h >> 7) % 10);
}

std::map<RequestId, Outcome> RunLoad(uint32_t seed, bool async) {
  std::mt19937 rng(seed);
  SchedConfig sched = Sched(2 + static_cast<int32_t>(rng() % 6));
  sched.max_num_batched_tokens = 8 + static_cast<int32_t>(rng() % 40);
  sched.long_prefill_token_threshold = static_cast<int32_t>(rng() % 3 * 5);
  const int32_t num_blocks = 16 + static_cast<int32_t>(rng() % 16);
  EngineCore engine(Mode(async, sched), Kv(num_blocks), std::make_unique<FakeExecutor>(Mixed), Letters());
  constexpr int kRequests = 40;
  for (RequestId id = 1; id <= kRequests; ++id) {
    Ids prompt(1 + rng() % 30);
    for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<TokenId>(i < 8 ? i % 2 : rng() % 9);
    auto request = MakeRequest(id, prompt, 1 + static_cast<int32_t>(rng() % 25));
    request->sampling.ignore_eos = rng() % 2 == 0;
    request->sampling.min_tokens = static_cast<int32_t>(rng() % 3);
    if (rng() % 3 == 0) request->sampling.stop = {"aa", "bcd"};
    if (rng() % 3 == 0) request->sampling.stop_token_ids = {4};
    EXPECT_TRUE(engine.Add(request).ok());
  }
  auto outcomes = Collect(&engine, kRequests);
  EXPECT_TRUE(engine.health().ok());
  return outcomes;
}

TEST(EngineAsync, RandomLoadsGiveTheSameTokensAsOneStepAtATime) {
  for (uint32_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const auto async = RunLoad(seed, true), sync = RunLoad(seed, false);
    ASSERT_EQ(async.size(), sync.size());
    for (const auto& [id, a] : async) {
      const Outcome& s = sync.at(id);
      EXPECT_EQ(a.ids, s.ids) << id;
      EXPECT_EQ(a.text, s.text) << id;
      EXPECT_EQ(a.last.finish_reason, s.last.finish_reason) << id;
      EXPECT_EQ(a.last.stop_reason, s.last.stop_reason) << id;
    }
  }
}

}  // namespace
}  // namespace fastllm
