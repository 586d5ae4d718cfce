#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/engine/engine_core.h"
#include "engine_fake_executor.h"
#include "engine_fixture.h"

namespace fastllm {
namespace {

// Counts up for ever.
TokenId Cycle(std::span<const TokenId> tokens, size_t) { return (tokens.back() + 1) % 8; }

// So many that a test can step through them until another thread's call has arrived.
constexpr int32_t kLongTokens = 40000;

SchedConfig LongSched(int32_t max_num_seqs) {
  SchedConfig sched = Sched(max_num_seqs);
  sched.max_model_len = 0;
  return sched;
}

struct Gated {
  Gate gate;
  EngineCore engine;
  explicit Gated(int32_t max_num_seqs = 4, EngineCoreOptions options = {})
      : engine(LongSched(max_num_seqs), Kv(kLongTokens / 2), std::make_unique<FakeExecutor>(Cycle, gate.Hook()),
               Letters(), std::move(options)) {}
  ~Gated() { gate.Open(); }

  // The call, a pause, runs in a thread of its own; the engine has it when this returns, and is in a step.
  template <typename F>
  std::future<Status> StartPause(F call) {
    auto paused = Start(call);
    while (engine.stats().paused == 0) {
      gate.leave.release();
      gate.entered.acquire();
    }
    return paused;
  }
  // The call runs in a thread of its own.
  template <typename F>
  std::future<Status> Start(F call) {
    return std::async(std::launch::async, [this, call] { return call(&engine); });
  }
};

Status PauseAbort(EngineCore* e) { return e->Pause(PauseMode::kAbort); }
Status PauseWait(EngineCore* e) { return e->Pause(PauseMode::kWait); }
Status PauseKeep(EngineCore* e) { return e->Pause(PauseMode::kKeep); }

TEST(EngineLifecycle, PauseAbortEndsAllAndHoldsWhatComes) {
  Gated parts(/*max_num_seqs=*/1);
  ASSERT_TRUE(parts.engine.Add(MakeRequest(1, {0}, kLongTokens)).ok());
  ASSERT_TRUE(parts.engine.Add(MakeRequest(2, {0}, kLongTokens)).ok());
  parts.gate.entered.acquire();
  auto paused = parts.StartPause(PauseAbort);
  parts.gate.Open();
  ASSERT_TRUE(paused.get().ok());
  EXPECT_EQ(parts.engine.stats().paused, 1);
  EXPECT_EQ(parts.engine.stats().used_blocks, 0);
  auto outcomes = Collect(&parts.engine, 2);
  EXPECT_EQ(outcomes[1].last.finish_reason, FinishReason::kAbort);
  EXPECT_EQ(outcomes[2].last.finish_reason, FinishReason::kAbort);

  for (const RequestId id : {3, 4, 5}) ASSERT_TRUE(parts.engine.Add(MakeRequest(id, {0}, 2)).ok());
  parts.engine.Abort(4);
  EXPECT_EQ(Collect(&parts.engine, 1)[4].last.finish_reason, FinishReason::kAbort);
  EXPECT_EQ(parts.engine.stats().waiting_paused, 2);
  EXPECT_EQ(parts.engine.stats().waiting, 2);
  ASSERT_TRUE(parts.engine.Resume().ok());
  outcomes = Collect(&parts.engine, 2);
  EXPECT_EQ(outcomes[3].ids, (Ids{1, 2}));
  EXPECT_EQ(outcomes[5].ids, (Ids{1, 2}));
  EXPECT_EQ(parts.engine.stats().paused, 0);
  EXPECT_EQ(parts.engine.stats().waiting_paused, 0);
}

TEST(EngineLifecycle, PauseWaitLetsAllFinish) {
  Gated parts(/*max_num_seqs=*/1);
  ASSERT_TRUE(parts.engine.Add(MakeRequest(1, {0}, 5)).ok());
  ASSERT_TRUE(parts.engine.Add(MakeRequest(2, {1}, 3)).ok());
  parts.gate.entered.acquire();
  auto paused = parts.Start(PauseWait);
  parts.gate.Open();
  ASSERT_TRUE(paused.get().ok());
  auto outcomes = Collect(&parts.engine, 2);
  EXPECT_EQ(outcomes[1].ids, (Ids{1, 2, 3, 4, 5}));
  EXPECT_EQ(outcomes[2].ids, (Ids{2, 3, 4}));
  EXPECT_EQ(parts.engine.stats().running + parts.engine.stats().waiting, 0);
}

TEST(EngineLifecycle, PauseKeepFreezesAndResumeGoesOn) {
  Gated parts;
  ASSERT_TRUE(parts.engine.Add(MakeRequest(1, {0}, kLongTokens)).ok());
  parts.gate.entered.acquire();
  auto paused = parts.StartPause(PauseKeep);
  parts.gate.Open();
  ASSERT_TRUE(paused.get().ok());
  const EngineStats frozen = parts.engine.stats();
  EXPECT_EQ(frozen.finished_requests, 0);
  EXPECT_EQ(frozen.running, 1);
  EXPECT_GT(frozen.used_blocks, 0);
  ASSERT_TRUE(parts.engine.Add(MakeRequest(2, {0}, 1)).ok());
  ASSERT_TRUE(parts.engine.Pause(PauseMode::kKeep).ok());  // the engine thread has seen request 2
  EXPECT_EQ(parts.engine.stats().steps, frozen.steps);
  EXPECT_EQ(parts.engine.stats().waiting_paused, 1);
  ASSERT_TRUE(parts.engine.Resume().ok());
  while (parts.engine.stats().steps < frozen.steps + 20) std::this_thread::yield();
  parts.engine.Abort(1);
  auto outcomes = Collect(&parts.engine, 2);
  const Ids& ids = outcomes[1].ids;
  EXPECT_GE(static_cast<int64_t>(ids.size()), frozen.steps + 19);
  for (size_t i = 0; i < ids.size(); ++i) ASSERT_EQ(ids[i], static_cast<TokenId>((i + 1) % 8)) << i;
  EXPECT_EQ(outcomes[2].ids, (Ids{1}));
}

TEST(EngineLifecycle, AKeptRequestCanBeAborted) {
  Gated parts;
  ASSERT_TRUE(parts.engine.Add(MakeRequest(1, {0}, kLongTokens)).ok());
  parts.gate.entered.acquire();
  auto paused = parts.StartPause(PauseKeep);
  parts.gate.Open();
  ASSERT_TRUE(paused.get().ok());
  parts.engine.Abort(1);
  EXPECT_EQ(Collect(&parts.engine, 1)[1].last.finish_reason, FinishReason::kAbort);
  EXPECT_EQ(parts.engine.stats().used_blocks, 0);
}

TEST(EngineLifecycle, ResumeAnswersAPauseThatIsNotThroughYet) {
  Gated parts;
  ASSERT_TRUE(parts.engine.Add(MakeRequest(1, {0}, kLongTokens)).ok());
  parts.gate.entered.acquire();
  auto paused = parts.StartPause(PauseWait);
  auto resumed = parts.Start([](EngineCore* e) { return e->Resume(); });
  while (parts.engine.stats().paused == 1) {
    parts.gate.leave.release();
    parts.gate.entered.acquire();
  }
  EXPECT_TRUE(resumed.get().ok());
  EXPECT_EQ(paused.get().code(), StatusCode::kFailedPrecondition);
  parts.engine.Abort(1);
  parts.gate.Open();
  EXPECT_EQ(Collect(&parts.engine, 1)[1].last.finish_reason, FinishReason::kAbort);
}

TEST(EngineLifecycle, DrainRefusesFinishesAndShutsDown) {
  Gated parts(/*max_num_seqs=*/1);
  for (const RequestId id : {1, 2}) ASSERT_TRUE(parts.engine.Add(MakeRequest(id, {0}, 6)).ok());
  parts.gate.entered.acquire();
  auto drained = std::async(std::launch::async, [&] { return parts.engine.DrainAndShutdown(kLong); });
  while (parts.engine.health().ok()) std::this_thread::yield();
  EXPECT_EQ(parts.engine.health().message(), "engine is draining");
  EXPECT_EQ(parts.engine.Add(MakeRequest(3, {0}, 1)).code(), StatusCode::kUnavailable);
  parts.gate.Open();
  EXPECT_TRUE(drained.get());
  auto outcomes = Collect(&parts.engine, 2);
  EXPECT_EQ(outcomes[1].ids.size(), 6u);
  EXPECT_EQ(outcomes[2].ids.size(), 6u);
  EXPECT_EQ(parts.engine.health().message(), "engine is shut down");
}

TEST(EngineLifecycle, DrainAbortsWhatIsLeftAtItsTimeout) {
  Gated parts;
  ASSERT_TRUE(parts.engine.Add(MakeRequest(1, {0}, kLongTokens)).ok());
  parts.gate.entered.acquire();
  auto drained = std::async(std::launch::async, [&] { return parts.engine.DrainAndShutdown(milliseconds(1)); });
  while (parts.engine.health().message() != "engine is shut down") std::this_thread::yield();
  parts.gate.Open();
  EXPECT_FALSE(drained.get());
  EXPECT_EQ(Collect(&parts.engine, 1)[1].last.finish_reason, FinishReason::kAbort);
}

TEST(EngineLifecycle, DrainEndsAPause) {
  EngineCore engine(Sched(), Kv(), std::make_unique<FakeExecutor>(Cycle), Letters());
  ASSERT_TRUE(engine.Pause(PauseMode::kKeep).ok());
  ASSERT_TRUE(engine.Add(MakeRequest(1, {0}, 3)).ok());
  EXPECT_TRUE(engine.DrainAndShutdown(kLong));
  EXPECT_EQ(Collect(&engine, 1)[1].ids, (Ids{1, 2, 3}));
}

TEST(EngineLifecycle, ControlsOfADeadEngineAreAnswered) {
  EngineCore engine(Sched(), Kv(), std::make_unique<FakeExecutor>(Cycle), Letters());
  engine.Shutdown();
  EXPECT_EQ(engine.Pause(PauseMode::kWait).code(), StatusCode::kUnavailable);
  EXPECT_EQ(engine.Resume().message(), "engine is shut down");
  EXPECT_FALSE(engine.DrainAndShutdown(kLong));
}

TEST(EngineLifecycle, AFailureAnswersWhoWaitsForAPause) {
  Gate gate;
  auto hook = gate.Hook();
  EngineCore engine(Sched(), Kv(),
                    std::make_unique<FakeExecutor>(Cycle,
                                                   [&](StepResult* result) {
                                                     hook(result);
                                                     result->status = Status::Internal("device lost");
                                                   }),
                    Letters());
  ASSERT_TRUE(engine.Add(MakeRequest(1, {0}, 3)).ok());
  gate.entered.acquire();
  auto paused = std::async(std::launch::async, [&] { return engine.Pause(PauseMode::kWait); });
  gate.Open();
  const Status status = paused.get();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("device lost"), std::string::npos) << status.message();
}

TEST(EngineLifecycle, AnEngineIsMadeAgainAfterAFailureBesideOthers) {
  EngineCore other(Sched(), Kv(), std::make_unique<FakeExecutor>(Cycle), Letters());
  for (int round = 0; round < 3; ++round) {
    auto failing = std::make_unique<FakeExecutor>(Cycle, [](StepResult* r) { r->status = Status::Internal("lost"); });
    EngineCore bad(Sched(), Kv(), std::move(failing), Letters());
    ASSERT_TRUE(bad.Add(MakeRequest(1, {0}, 3)).ok());
    EXPECT_EQ(Collect(&bad, 1)[1].last.finish_reason, FinishReason::kError);
    EngineCore again(Sched(), Kv(), std::make_unique<FakeExecutor>(Cycle), Letters());
    ASSERT_TRUE(again.Add(MakeRequest(1, {0}, 3)).ok());
    ASSERT_TRUE(other.Add(MakeRequest(1, {3}, 3)).ok());
    EXPECT_EQ(Collect(&again, 1)[1].ids, (Ids{1, 2, 3}));
    EXPECT_EQ(Collect(&other, 1)[1].ids, (Ids{4, 5, 6}));
    EXPECT_FALSE(bad.health().ok());
    EXPECT_TRUE(again.health().ok());
  }
}

TEST(EngineLifecycle, HealthTellsOfAStallAndOfItsEnd) {
  EngineCoreOptions options;
  options.stall_timeout = milliseconds(1);
  Gated parts(4, std::move(options));
  EXPECT_TRUE(parts.engine.health().ok());  // idle is no stall, however long
  ASSERT_TRUE(parts.engine.Add(MakeRequest(1, {0}, 3)).ok());
  parts.gate.entered.acquire();
  while (parts.engine.health().ok()) std::this_thread::yield();
  EXPECT_EQ(parts.engine.health().code(), StatusCode::kUnavailable);
  EXPECT_NE(parts.engine.health().message().find("no heartbeat for 0 s"), std::string::npos)
      << parts.engine.health().message();
  const int64_t beats = parts.engine.stats().heartbeat;
  parts.gate.Open();
  Collect(&parts.engine, 1);
  ASSERT_TRUE(parts.engine.Pause(PauseMode::kWait).ok());
  while (!parts.engine.health().ok()) std::this_thread::yield();  // until the thread rests
  EXPECT_GT(parts.engine.stats().heartbeat, beats);
}

// Sleeps as asked, and notes it.
class SleepyExecutor : public FakeExecutor {
 public:
  explicit SleepyExecutor(std::vector<std::string>* log) : FakeExecutor(Cycle), log_(log) {}
  Status Sleep(int32_t level) override {
    log_->push_back("sleep " + std::to_string(level));
    return Status::Ok();
  }
  Result<bool> Wake(const std::vector<std::string>& tags) override {
    log_->push_back("wake " + std::to_string(tags.size()));
    return tags.empty();
  }

 private:
  std::vector<std::string>* log_;
};

TEST(EngineLifecycle, SleepNeedsAPausedEngineAndDropsThePrefixes) {
  std::vector<std::string> log;
  EngineCore engine(Sched(), Kv(), std::make_unique<SleepyExecutor>(&log), Letters());
  ASSERT_TRUE(engine.Add(MakeRequest(1, Ids(9, 0), 1)).ok());
  Collect(&engine, 1);
  EXPECT_EQ(engine.Sleep(1).code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(engine.Pause(PauseMode::kWait).ok());
  EXPECT_EQ(engine.Sleep(3).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(engine.Wake({}).code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(engine.Sleep(2).ok());
  EXPECT_EQ(engine.stats().asleep, 1);
  EXPECT_EQ(engine.Resume().code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(engine.Add(MakeRequest(2, Ids(9, 0), 1)).ok());
  ASSERT_TRUE(engine.Wake({"weights"}).ok());
  EXPECT_EQ(engine.stats().asleep, 1);
  ASSERT_TRUE(engine.Wake({}).ok());
  EXPECT_EQ(engine.stats().asleep, 0);
  EXPECT_EQ(engine.stats().paused, 1);
  ASSERT_TRUE(engine.Resume().ok());
  EXPECT_EQ(Collect(&engine, 1)[2].last.num_cached_tokens, 0);  // 8 without the sleep
  EXPECT_EQ(log, (std::vector<std::string>{"sleep 2", "wake 1", "wake 0"}));
}

TEST(EngineLifecycle, AnExecutorThatCannotSleepSaysSo) {
  EngineCore engine(Sched(), Kv(), std::make_unique<FakeExecutor>(Cycle), Letters());
  ASSERT_TRUE(engine.Pause(PauseMode::kAbort).ok());
  EXPECT_EQ(engine.Sleep(1).code(), StatusCode::kUnimplemented);
  ASSERT_TRUE(engine.Resume().ok());
  ASSERT_TRUE(engine.Add(MakeRequest(1, {0}, 2)).ok());
  EXPECT_EQ(Collect(&engine, 1)[1].ids, (Ids{1, 2}));
}

TEST(EngineLifecycle, KeptRequestsWithBlocksForbidSleepAndReset) {
  Gated parts;
  ASSERT_TRUE(parts.engine.Add(MakeRequest(1, Ids(9, 0), kLongTokens)).ok());
  parts.gate.entered.acquire();
  auto paused = parts.StartPause(PauseKeep);
  parts.gate.Open();
  ASSERT_TRUE(paused.get().ok());
  ASSERT_GT(parts.engine.stats().used_blocks, 0);
  EXPECT_EQ(parts.engine.Sleep(1).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(parts.engine.ResetPrefixCache().code(), StatusCode::kFailedPrecondition);
  parts.engine.Abort(1);
  Collect(&parts.engine, 1);
  ASSERT_TRUE(parts.engine.Resume().ok());
  // 8 of them would come from the cache.
  ASSERT_TRUE(parts.engine.ResetPrefixCache().ok());
  ASSERT_TRUE(parts.engine.Add(MakeRequest(2, Ids(9, 0), 1)).ok());
  EXPECT_EQ(Collect(&parts.engine, 1)[2].last.num_cached_tokens, 0);
}

}  // namespace
}  // namespace fastllm
