#include <gtest/gtest.h>

#include <memory>

#include "core/engine/queue_limit.h"
#include "engine_fixture.h"

namespace fastllm {
namespace {

TEST(EngineDeadline, ARequestWhoseTimeIsUpEndsWithAnError) {
  EngineCore engine(Sched(), Kv(), std::make_unique<FakeExecutor>(CountUp), Letters());
  auto late = MakeRequest(1, {0}, 5);
  late->arrival_ns = 1000000;  // 1 ms after the steady clock's start
  late->timeout_ms = 1;
  ASSERT_TRUE(engine.Add(late).ok());
  ASSERT_TRUE(engine.Add(MakeRequest(2, {0}, 3)).ok());
  auto queued = MakeRequest(3, {0}, 5);
  queued->arrival_ns = 1000000;
  queued->max_queue_ms = 1;
  ASSERT_TRUE(engine.Add(queued).ok());
  auto outcomes = Collect(&engine, 3);
  EXPECT_EQ(outcomes[1].last.finish_reason, FinishReason::kError);
  EXPECT_EQ(outcomes[1].last.error_code, StatusCode::kDeadlineExceeded);
  EXPECT_NE(outcomes[1].last.error.find("not finished after"), std::string::npos) << outcomes[1].last.error;
  EXPECT_TRUE(outcomes[1].ids.empty());
  EXPECT_EQ(outcomes[2].ids, (Ids{1, 2, 3}));
  EXPECT_EQ(outcomes[2].last.error_code, StatusCode::kOk);
  EXPECT_EQ(outcomes[3].last.error_code, StatusCode::kResourceExhausted);
  EXPECT_NE(outcomes[3].last.error.find("still queued after"), std::string::npos) << outcomes[3].last.error;
}

TEST(QueueLimit, CountsWhatWaitsOnBothSides) {
  QueueLimit limit(3, 20);
  EXPECT_TRUE(limit.Check(100, 0, 0).ok());  // alone, any length
  EXPECT_TRUE(limit.Check(10, 1, 10).ok());
  EXPECT_EQ(limit.Check(11, 1, 10).message(),
            "the queue is full: 10 tokens wait and the request has 11, max_num_queued_tokens is 20; try again in about "
            "1000 ms");
  limit.Report(2, 5);
  EXPECT_TRUE(limit.Check(15, 0, 0).ok());
  EXPECT_FALSE(limit.Check(16, 0, 0).ok());
  EXPECT_TRUE(limit.Check(1, 0, 0).ok());
  const Status full = limit.Check(1, 1, 1);
  EXPECT_EQ(full.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(full.message(), "the queue is full: 3 requests wait, max_num_queued_reqs is 3; try again in about 1000 ms");
  EXPECT_EQ(full.retry_after_ms(), 1000);
  limit.Report(0, 0);
  EXPECT_TRUE(limit.Check(1, 0, 0).ok());
  EXPECT_EQ(limit.Check(1, 0, 0).retry_after_ms(), 0);
}

TEST(QueueLimit, TheHintIsTheMeanWaitOfThoseThatLeft) {
  QueueLimit limit(1, 0);
  limit.Report(1, 1);
  // In the future, so that the time since then does not count.
  const auto now = QueueLimit::Clock::now() + std::chrono::hours(1);
  limit.Left(milliseconds(4000), now);
  EXPECT_EQ(limit.Check(1, 0, 0).retry_after_ms(), 4000);
  limit.Left(milliseconds(12000), now);  // an eighth of the way
  EXPECT_EQ(limit.Check(1, 0, 0).retry_after_ms(), 5000);
  limit.Left(milliseconds(4000), now - std::chrono::hours(3));
  EXPECT_EQ(limit.Check(1, 0, 0).retry_after_ms(), 600000);  // nobody left for two hours; the most that is said
}

TEST(EngineQueue, IsBoundedByRequestsAndOthersGoOn) {
  SchedConfig sched = Sched(1);
  sched.max_num_queued_reqs = 2;
  sched.async_scheduling = false;
  Gate gate;
  EngineCore engine(sched, Kv(), std::make_unique<FakeExecutor>(CountUp, gate.Hook()), Letters());
  ASSERT_TRUE(engine.Add(MakeRequest(1, {0}, 2)).ok());
  gate.entered.acquire();  // 1 runs, and the queue is empty
  ASSERT_TRUE(engine.Add(MakeRequest(2, {0}, 2)).ok());
  ASSERT_TRUE(engine.Add(MakeRequest(3, {0}, 2)).ok());
  const Status full = engine.Add(MakeRequest(4, {0}, 2));
  EXPECT_EQ(full.code(), StatusCode::kResourceExhausted);
  EXPECT_GT(full.retry_after_ms(), 0);
  EXPECT_NE(full.message().find("2 requests wait, max_num_queued_reqs is 2"), std::string::npos) << full.message();
  engine.Abort(3);
  gate.leave.release();
  gate.entered.acquire();  // the second step of 1; the engine thread has taken 2 and the abort of 3
  EXPECT_TRUE(engine.Add(MakeRequest(5, {0}, 2)).ok());
  EXPECT_EQ(engine.Add(MakeRequest(6, {0}, 2)).code(), StatusCode::kResourceExhausted);
  gate.Open();
  auto outcomes = Collect(&engine, 4);
  for (const RequestId id : {1, 2, 5}) EXPECT_EQ(outcomes[id].ids, (Ids{1, 2})) << id;
  EXPECT_EQ(outcomes[3].last.finish_reason, FinishReason::kAbort);
  EXPECT_TRUE(engine.Add(MakeRequest(7, {0}, 2)).ok());
}

TEST(EngineQueue, IsBoundedByTokens) {
  SchedConfig sched = Sched(1);
  sched.max_num_queued_tokens = 12;
  Gate gate;
  EngineCore engine(sched, Kv(), std::make_unique<FakeExecutor>(CountUp, gate.Hook()), Letters());
  ASSERT_TRUE(engine.Add(MakeRequest(1, Ids(20, 0), 1)).ok());  // alone
  gate.entered.acquire();
  ASSERT_TRUE(engine.Add(MakeRequest(2, Ids(7, 0), 1)).ok());
  EXPECT_EQ(engine.Add(MakeRequest(3, Ids(6, 0), 1)).code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(engine.Add(MakeRequest(4, Ids(5, 0), 1)).ok());
  EXPECT_EQ(engine.Add(MakeRequest(5, {0}, 1)).code(), StatusCode::kResourceExhausted);
  gate.Open();
  EXPECT_EQ(Collect(&engine, 3).size(), 3u);
}

TEST(EngineQueue, RequestsThatAreHeldInAPauseWaitToo) {
  SchedConfig sched = Sched();
  sched.max_num_queued_reqs = 2;
  EngineCore engine(sched, Kv(), std::make_unique<FakeExecutor>(CountUp), Letters());
  ASSERT_TRUE(engine.Pause(PauseMode::kWait).ok());
  ASSERT_TRUE(engine.Add(MakeRequest(1, {0}, 2)).ok());
  ASSERT_TRUE(engine.Add(MakeRequest(2, {0, 1}, 2)).ok());
  EXPECT_EQ(engine.Add(MakeRequest(3, {0}, 2)).code(), StatusCode::kResourceExhausted);
  ASSERT_TRUE(engine.Pause(PauseMode::kWait).ok());  // all before it is through
  EXPECT_EQ(engine.stats().waiting_paused, 2);
  EXPECT_EQ(engine.stats().queued_tokens, 3);
  EXPECT_EQ(engine.Add(MakeRequest(3, {0}, 2)).code(), StatusCode::kResourceExhausted);
  ASSERT_TRUE(engine.Resume().ok());
  EXPECT_EQ(Collect(&engine, 2).size(), 2u);
}

}  // namespace
}  // namespace fastllm
