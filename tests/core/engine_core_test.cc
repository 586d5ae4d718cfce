#include <gtest/gtest.h>
#include <poll.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core/engine/engine_core.h"
#include "engine_fake_executor.h"
#include "engine_fixture.h"

namespace fastllm {
namespace {

struct EngineParts {
  Gate gate;
  std::unique_ptr<EngineCore> engine;
  explicit EngineParts(int32_t max_num_seqs = 4)
      : engine(std::make_unique<EngineCore>(Sched(max_num_seqs), Kv(),
                                            std::make_unique<FakeExecutor>(CountUp, gate.Hook()), Letters())) {}
  ~EngineParts() { gate.Open(); }
};

EngineCore MakeEngine(FakeExecutor::Hook hook = {}, FakeExecutor::NextToken next = CountUp) {
  return EngineCore(Sched(), Kv(), std::make_unique<FakeExecutor>(next, std::move(hook)), Letters());
}

TEST(EngineCore, GeneratesUpToMaxTokens) {
  EngineCore engine = MakeEngine();
  ASSERT_TRUE(engine.Add(MakeRequest(1, {0, 1, 2, 0, 0}, 4)).ok());
  const Outcome o = Collect(&engine, 1)[1];
  EXPECT_EQ(o.ids, (Ids{1, 2, 3, 4}));
  EXPECT_EQ(o.text, "bcde");
  EXPECT_EQ(o.last.finish_reason, FinishReason::kLength);
  EXPECT_EQ(o.last.stop_reason, StopReason());
  EXPECT_EQ(o.last.num_prompt_tokens, 5);
  EXPECT_EQ(o.last.num_cached_tokens, 0);
  const EngineStats stats = engine.stats();
  EXPECT_EQ(stats.steps, 4);
  EXPECT_EQ(stats.scheduled_tokens, 5 + 3);
  EXPECT_EQ(stats.used_blocks, 0);
  EXPECT_EQ(stats.running, 0);
  EXPECT_EQ(stats.finished_requests, 1);
  // The first block of the prompt is cached now.
  ASSERT_TRUE(engine.Add(MakeRequest(2, {0, 1, 2, 0, 0}, 1)).ok());
  EXPECT_EQ(Collect(&engine, 1)[2].last.num_cached_tokens, 4);
}

TEST(EngineCore, EndOfSequenceAndStopTokens) {
  EngineCore engine = MakeEngine();
  ASSERT_TRUE(engine.Add(MakeRequest(1, {6}, 50)).ok());
  auto by_id = MakeRequest(2, {0}, 50);
  by_id->sampling.stop_token_ids = {3};
  ASSERT_TRUE(engine.Add(by_id).ok());
  auto outcomes = Collect(&engine, 2);
  EXPECT_EQ(outcomes[1].ids, (Ids{7, 8, kEos}));
  EXPECT_EQ(outcomes[1].text, "hi");
  EXPECT_EQ(outcomes[1].last.finish_reason, FinishReason::kStop);
  EXPECT_EQ(outcomes[1].last.stop_reason, StopReason());
  EXPECT_EQ(outcomes[2].ids, (Ids{1, 2, 3}));
  EXPECT_EQ(outcomes[2].text, "bc");
  EXPECT_EQ(outcomes[2].last.stop_reason, StopReason(3));
}

TEST(EngineCore, StopStringEndsTheSequence) {
  SchedConfig sched = Sched();
  sched.async_scheduling = false;  // with it one more step is under way when the stop string shows
  EngineCore engine(sched, Kv(), std::make_unique<FakeExecutor>(CountUp), Letters());
  auto request = MakeRequest(1, {0}, 50);
  request->sampling.stop = {"zz", "de"};
  ASSERT_TRUE(engine.Add(request).ok());
  const Outcome o = Collect(&engine, 1)[1];
  EXPECT_EQ(o.ids, (Ids{1, 2, 3, 4}));
  EXPECT_EQ(o.text, "bc");
  EXPECT_EQ(o.last.finish_reason, FinishReason::kStop);
  EXPECT_EQ(o.last.stop_reason, StopReason(std::string("de")));
  EXPECT_EQ(engine.stats().used_blocks, 0);
  EXPECT_EQ(engine.stats().steps, 4);
}

TEST(EngineCore, NoTextWithoutDetokenizeOrTable) {
  EngineCore engine = MakeEngine();
  auto request = MakeRequest(1, {0}, 3);
  request->sampling.detokenize = false;
  ASSERT_TRUE(engine.Add(request).ok());
  const Outcome o = Collect(&engine, 1)[1];
  EXPECT_EQ(o.ids, (Ids{1, 2, 3}));
  EXPECT_EQ(o.text, "");

  EngineCore bare(Sched(), Kv(), std::make_unique<FakeExecutor>(CountUp), nullptr);
  ASSERT_TRUE(bare.Add(MakeRequest(1, {0}, 3)).ok());
  EXPECT_EQ(Collect(&bare, 1)[1].ids, (Ids{1, 2, 3}));
  auto stops = MakeRequest(2, {0}, 3);
  stops->sampling.stop = {"x"};
  EXPECT_EQ(bare.Add(stops).code(), StatusCode::kInvalidArgument);
}

TEST(EngineCore, RefusesWhatCanNeverFitInThePool) {
  EngineCore engine(Sched(), Kv(/*num_blocks=*/3), std::make_unique<FakeExecutor>(CountUp), Letters());
  const Status status = engine.Add(MakeRequest(1, {0, 0, 0}, 7));
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "prompt + max_tokens - 1 must be at most 8, the tokens that the KV cache holds, got 9");
  ASSERT_TRUE(engine.Add(MakeRequest(2, {0, 0, 0}, 6)).ok());
  EXPECT_EQ(Collect(&engine, 1)[2].ids.size(), 6u);
}

TEST(EngineCore, WhatTheSchedulerRefusesEndsThatRequestAlone) {
  SchedConfig sched = Sched();
  sched.enable_chunked_prefill = false;
  sched.max_num_batched_tokens = 8;
  EngineCore engine(sched, Kv(), std::make_unique<FakeExecutor>(CountUp), Letters());
  ASSERT_TRUE(engine.Add(MakeRequest(1, Ids(20, 0), 2)).ok());
  ASSERT_TRUE(engine.Add(MakeRequest(2, {0}, 2)).ok());
  auto outcomes = Collect(&engine, 2);
  EXPECT_EQ(outcomes[1].last.finish_reason, FinishReason::kError);
  EXPECT_NE(outcomes[1].last.error.find("max_num_batched_tokens = 8"), std::string::npos) << outcomes[1].last.error;
  EXPECT_EQ(outcomes[2].last.finish_reason, FinishReason::kLength);
  EXPECT_TRUE(engine.health().ok());
}

TEST(EngineCore, AbortWhileRunningWaitingAndJustAdded) {
  EngineParts parts(/*max_num_seqs=*/1);
  EngineCore& engine = *parts.engine;
  ASSERT_TRUE(engine.Add(MakeRequest(1, {0}, 8)).ok());
  parts.gate.entered.acquire();  // 1 is inside its first step
  ASSERT_TRUE(engine.Add(MakeRequest(2, {0}, 8)).ok());
  parts.gate.leave.release();
  parts.gate.entered.acquire();  // 1 is inside its second step, 2 waits for its place
  ASSERT_TRUE(engine.Add(MakeRequest(3, {0}, 8)).ok());
  for (const RequestId id : {1, 2, 3}) engine.Abort(id);
  engine.Abort(1);   // once more
  engine.Abort(77);  // never seen
  parts.gate.Open();
  auto outcomes = Collect(&engine, 3);
  for (const RequestId id : {1, 2, 3}) {
    EXPECT_EQ(outcomes[id].last.finish_reason, FinishReason::kAbort) << id;
    EXPECT_EQ(outcomes[id].num_finishes, 1);
  }
  EXPECT_EQ(outcomes[1].ids, (Ids{1, 2}));  // the steps that ran
  EXPECT_EQ(outcomes[2].ids, Ids());
  EXPECT_EQ(outcomes[3].ids, Ids());
  EXPECT_EQ(engine.stats().used_blocks, 0);
  // Aborting what has ended does nothing; the engine goes on.
  engine.Abort(1);
  ASSERT_TRUE(engine.Add(MakeRequest(4, {0}, 2)).ok());
  EXPECT_EQ(Collect(&engine, 1)[4].ids, (Ids{1, 2}));
}

TEST(EngineCore, AbortSendsTheTextThatWasHeldBack) {
  EngineParts parts;
  auto request = MakeRequest(1, {0}, 8);
  request->sampling.stop = {"long stop"};
  ASSERT_TRUE(parts.engine->Add(request).ok());
  parts.gate.entered.acquire();
  parts.engine->Abort(1);
  parts.gate.Open();
  const Outcome o = Collect(parts.engine.get(), 1)[1];
  EXPECT_EQ(o.ids, (Ids{1}));
  EXPECT_EQ(o.text, "b");
}

TEST(EngineCore, ARowWithoutFiniteLogitsEndsThatRequestAlone) {
  EngineCore engine = MakeEngine({}, [](std::span<const TokenId> tokens, size_t num_prompt) -> TokenId {
    return num_prompt == 2 && tokens.size() == 4 ? -1 : (tokens.back() + 1) % 8;
  });
  ASSERT_TRUE(engine.Add(MakeRequest(1, {0, 0}, 20)).ok());
  ASSERT_TRUE(engine.Add(MakeRequest(2, {0}, 20)).ok());
  auto outcomes = Collect(&engine, 2);
  EXPECT_EQ(outcomes[1].last.finish_reason, FinishReason::kError);
  EXPECT_EQ(outcomes[1].last.error, "model produced no finite logits");
  EXPECT_EQ(outcomes[1].ids, (Ids{1, 2}));
  EXPECT_EQ(outcomes[2].last.finish_reason, FinishReason::kLength);
  EXPECT_EQ(outcomes[2].ids.size(), 20u);
  EXPECT_TRUE(engine.health().ok());
  EXPECT_EQ(engine.stats().used_blocks, 0);
}

// Runs two requests into a failure of their third step and checks what everyone is told.
void ExpectPoisoned(FakeExecutor::Hook failure, const std::string& reason) {
  auto num_steps = std::make_shared<int>(0);
  EngineCore engine = MakeEngine([=](StepResult* result) {
    if (++*num_steps == 3) failure(result);
  });
  ASSERT_TRUE(engine.Add(MakeRequest(1, {0}, 50)).ok());
  auto held = MakeRequest(2, {0}, 50);
  held->sampling.stop = {"xyz"};
  const bool second = engine.Add(held).ok();
  auto outcomes = Collect(&engine, second ? 2 : 1);
  for (const auto& [id, o] : outcomes) {
    EXPECT_EQ(o.last.finish_reason, FinishReason::kError);
    EXPECT_NE(o.last.error.find(reason), std::string::npos) << o.last.error;
    EXPECT_EQ(o.text.size(), o.ids.size());  // what was held back is sent too
  }
  EXPECT_EQ(outcomes[1].ids, (Ids{1, 2}));
  const Status refused = engine.Add(MakeRequest(3, {0}, 1));
  EXPECT_EQ(refused.code(), StatusCode::kUnavailable);
  EXPECT_NE(refused.message().find(reason), std::string::npos);
  EXPECT_EQ(engine.health().message(), refused.message());
  EXPECT_EQ(engine.health().code(), StatusCode::kUnavailable);
  engine.Abort(1);
  EXPECT_TRUE(engine.Drain(kLong).empty());  // at once: nothing comes any more
  engine.Shutdown();
  EXPECT_NE(engine.health().message().find(reason), std::string::npos);
}

TEST(EngineCore, AFailedStepPoisonsTheEngine) {
  ExpectPoisoned([](StepResult* r) { r->status = Status::Internal("device lost"); }, "internal: device lost");
}

TEST(EngineCore, AnExceptionPoisonsTheEngine) {
  ExpectPoisoned([](StepResult*) { throw std::runtime_error("boom"); }, "boom");
  ExpectPoisoned([](StepResult*) { throw 7; }, "unknown exception");
}

TEST(EngineCore, AnAnswerToAnotherStepPoisonsTheEngine) {
  ExpectPoisoned([](StepResult* r) { r->step_id = 99; }, "99");
}

TEST(EngineCore, AnIdInUsePoisonsTheEngineAndReportsToAll) {
  EngineParts parts;
  ASSERT_TRUE(parts.engine->Add(MakeRequest(1, {0}, 8)).ok());
  parts.gate.entered.acquire();
  for (const RequestId id : {2, 1, 3}) ASSERT_TRUE(parts.engine->Add(MakeRequest(id, {0}, 8)).ok());
  parts.gate.Open();
  auto outcomes = Collect(parts.engine.get(), 3);
  for (const RequestId id : {1, 2, 3}) EXPECT_EQ(outcomes[id].last.finish_reason, FinishReason::kError) << id;
}

TEST(EngineCore, ShutdownAbortsDeliversAndIsIdempotent) {
  EngineParts parts;
  EngineCore& engine = *parts.engine;
  ASSERT_TRUE(engine.Add(MakeRequest(1, {0}, 8)).ok());
  parts.gate.entered.acquire();
  ASSERT_TRUE(engine.Add(MakeRequest(2, {0}, 8)).ok());
  EXPECT_TRUE(engine.health().ok());
  std::thread other([&] { engine.Shutdown(); });
  while (engine.health().ok()) std::this_thread::yield();  // the inbox is closed, the step still runs
  EXPECT_EQ(engine.Add(MakeRequest(3, {0}, 8)).code(), StatusCode::kUnavailable);
  parts.gate.Open();
  engine.Shutdown();
  other.join();
  engine.Shutdown();
  auto outcomes = Collect(&engine, 2);
  EXPECT_EQ(outcomes[1].last.finish_reason, FinishReason::kAbort);
  EXPECT_EQ(outcomes[2].last.finish_reason, FinishReason::kAbort);
  EXPECT_EQ(engine.health().message(), "engine is shut down");
  EXPECT_TRUE(engine.Drain(kLong).empty());
}

TEST(EngineCore, EventFdIsReadableExactlyWhileDeltasArePending) {
  EngineCore engine = MakeEngine();
  EXPECT_FALSE(Readable(engine.event_fd()));
  EXPECT_TRUE(engine.Drain(milliseconds(0)).empty());
  for (RequestId id = 1; id <= 20; ++id) {
    ASSERT_TRUE(engine.Add(MakeRequest(id, {0}, 5)).ok());
    // Woken by the fd alone, as an event loop is.
    for (bool finished = false; !finished;) {
      pollfd p{engine.event_fd(), POLLIN, 0};
      ASSERT_EQ(poll(&p, 1, kLong.count()), 1);
      const auto deltas = engine.Drain(milliseconds(0));
      EXPECT_FALSE(deltas.empty());
      for (const RequestDelta& d : deltas) finished |= d.finish_reason != FinishReason::kNone;
    }
    EXPECT_FALSE(Readable(engine.event_fd()));
  }
}

}  // namespace
}  // namespace fastllm
