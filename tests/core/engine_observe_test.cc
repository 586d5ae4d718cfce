#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/engine/engine_core.h"
#include "core/engine/outbox.h"
#include "core/engine/request_timer.h"
#include "engine_fake_executor.h"
#include "engine_fixture.h"

namespace fastllm {
namespace {

using Time = RequestTimer::Time;

Time At(int64_t ms) { return Time(milliseconds(1000000 + ms)); }

TokenId Cycle(std::span<const TokenId> tokens, size_t) { return (tokens.back() + 1) % 8; }

TEST(RequestTimer, TimesOfALifeWithAPreemption) {
  RequestTimer timer(std::chrono::nanoseconds(At(0).time_since_epoch()).count(), At(10));
  timer.Scheduled(At(40));
  timer.Tokens(0, At(50));  // a step of its prompt
  timer.Tokens(1, At(100));
  timer.Scheduled(At(110));  // once more after a preemption
  timer.Tokens(1, At(130));
  timer.Tokens(2, At(190));
  const RequestMetrics m = timer.Finish(At(200));
  EXPECT_DOUBLE_EQ(m.queued_ts, 1000.010);
  EXPECT_DOUBLE_EQ(m.scheduled_ts, 1000.040);
  EXPECT_DOUBLE_EQ(m.first_token_ts, 1000.100);
  EXPECT_DOUBLE_EQ(m.last_token_ts, 1000.190);
  EXPECT_DOUBLE_EQ(m.first_token_latency, 0.100);
  EXPECT_DOUBLE_EQ(m.queued_time, 0.030);
  EXPECT_DOUBLE_EQ(m.prefill_time, 0.060);
  EXPECT_DOUBLE_EQ(m.decode_time, 0.090);
  EXPECT_DOUBLE_EQ(m.inference_time, 0.150);
  EXPECT_DOUBLE_EQ(m.e2e_latency, 0.200);
  EXPECT_DOUBLE_EQ(m.mean_time_per_output_token, 0.030);
  EXPECT_DOUBLE_EQ(m.min_inter_token_latency, 0.030);
  EXPECT_DOUBLE_EQ(m.max_inter_token_latency, 0.060);
  EXPECT_EQ(m.num_generation_tokens, 4);
  EXPECT_EQ(m.num_preemptions, 1);
}

TEST(RequestTimer, WhatNeverCameIsZero) {
  const RequestMetrics m = RequestTimer(0, At(10)).Finish(At(30));
  EXPECT_DOUBLE_EQ(m.e2e_latency, 0.020);  // no arrival is known, so it counts from the queue
  EXPECT_EQ(m.scheduled_ts, 0);
  EXPECT_EQ(m.first_token_latency, 0);
  EXPECT_EQ(m.queued_time, 0);
  EXPECT_EQ(m.decode_time, 0);
  EXPECT_EQ(m.mean_time_per_output_token, 0);
  EXPECT_EQ(m.min_inter_token_latency, 0);
  EXPECT_EQ(m.num_preemptions, 0);
}

TEST(EngineObserve, TheLastDeltaAndNoOtherHasMetrics) {
  EngineCore engine(Sched(1), Kv(), std::make_unique<FakeExecutor>(Cycle), Letters());
  ASSERT_TRUE(engine.Add(MakeRequest(1, {0, 0, 0}, 4)).ok());
  ASSERT_TRUE(engine.Add(MakeRequest(2, {0, 0, 0}, 1)).ok());
  auto outcomes = Collect(&engine, 2);
  for (const RequestId id : {1, 2}) {
    ASSERT_TRUE(outcomes[id].last.metrics.has_value());
    const RequestMetrics& m = *outcomes[id].last.metrics;
    EXPECT_EQ(m.num_generation_tokens, id == 1 ? 4 : 1);
    EXPECT_LE(m.queued_ts, m.scheduled_ts);
    EXPECT_LE(m.scheduled_ts, m.first_token_ts);
    EXPECT_LE(m.first_token_ts, m.last_token_ts);
    EXPECT_GE(m.e2e_latency, m.first_token_latency);
    EXPECT_GT(m.arrival_time, 1.6e9);  // after 2020
  }
  // Its only token comes after all four of the first, which has the only place.
  EXPECT_GT(outcomes[2].last.metrics->scheduled_ts, outcomes[1].last.metrics->first_token_ts);
  EXPECT_GE(outcomes[2].last.metrics->first_token_ts, outcomes[1].last.metrics->last_token_ts);
}

TEST(EngineObserve, PreemptionsOfARequestAreCounted) {
  // Two sequences of 4 + 20 tokens want 12 blocks of 4; 8 are there.
  EngineCore engine(Sched(), Kv(9), std::make_unique<FakeExecutor>(Cycle), Letters());
  ASSERT_TRUE(engine.Pause(PauseMode::kWait).ok());  // so that both begin together
  for (const RequestId id : {1, 2}) ASSERT_TRUE(engine.Add(MakeRequest(id, Ids(4, static_cast<TokenId>(id)), 20)).ok());
  ASSERT_TRUE(engine.Resume().ok());
  auto outcomes = Collect(&engine, 2);
  int64_t sum = 0;
  for (const auto& [id, o] : outcomes) sum += o.last.metrics->num_preemptions;
  EXPECT_GT(sum, 0);
  EXPECT_EQ(sum, engine.stats().preemptions);
}

TEST(EngineObserve, StatisticsOfAStep) {
  Gate gate;
  EngineCore engine(Sched(2), Kv(), std::make_unique<FakeExecutor>(Cycle, gate.Hook()), Letters());
  ASSERT_TRUE(engine.Pause(PauseMode::kKeep).ok());  // so that all are there in the first step
  for (const RequestId id : {1, 2, 3}) ASSERT_TRUE(engine.Add(MakeRequest(id, {0, 1, 2, 3, 4}, 3)).ok());
  ASSERT_TRUE(engine.Resume().ok());
  gate.entered.acquire();
  gate.leave.release();
  gate.entered.acquire();  // the statistics of step 1 are out, step 2 runs
  const EngineStats s = engine.stats();
  EXPECT_EQ(s.steps, 1);
  EXPECT_EQ(s.running, 2);
  EXPECT_EQ(s.waiting, 1);
  EXPECT_EQ(s.queued_tokens, 5);
  EXPECT_EQ(s.waiting_paused, 0);
  EXPECT_EQ(s.total_blocks, 31);
  EXPECT_EQ(s.used_blocks, 3);  // one is shared, 5 + 1 tokens of each fit in two
  EXPECT_DOUBLE_EQ(s.kv_cache_usage(), 3.0 / 31.0);
  EXPECT_EQ(s.prefix_query_tokens, 10);
  EXPECT_EQ(s.prefix_hit_tokens, 4);
  EXPECT_EQ(s.last_step_requests, 2);
  EXPECT_EQ(s.last_step_tokens, 5 + 1);
  EXPECT_EQ(s.scheduled_tokens, 6 + 2);  // step 2 is planned
  EXPECT_GE(s.schedule_ns, s.last_schedule_ns);
  EXPECT_GT(s.last_execute_ns, 0);
  EXPECT_GT(s.last_update_ns, 0);
  gate.Open();
  Collect(&engine, 3);
}

TEST(Outbox, NewsOfARequestJoinWhatIsPending) {
  Outbox outbox;
  std::vector<RequestDelta> used;
  const auto push = [&outbox, &used](std::vector<RequestDelta> deltas) { outbox.Push(&deltas, &used); };
  const auto drain = [&outbox] {
    std::vector<RequestDelta> deltas;
    outbox.Drain(milliseconds(0), &deltas);
    return deltas;
  };
  const auto delta = [](uint64_t id, TokenId token, std::string text) {
    RequestDelta d;
    d.request_id = id;
    d.token_ids = {token};
    d.text_offsets = {token};
    d.text = std::move(text);
    return d;
  };
  for (TokenId token = 0; token < 1000; ++token) {
    push({delta(1, token, "x"), delta(2, token + 1, "yz")});
  }
  RequestDelta last = delta(2, 7, "!");
  last.finish_reason = FinishReason::kStop;
  last.stop_reason = 7;
  last.num_cached_tokens = 3;
  last.metrics.emplace().num_generation_tokens = 1001;
  push({last, delta(3, 5, "new")});
  const auto got = drain();
  ASSERT_EQ(got.size(), 3u);
  EXPECT_EQ(got[0].request_id, 1u);
  EXPECT_EQ(got[0].token_ids.size(), 1000u);
  EXPECT_EQ(got[0].token_ids[999], 999);
  EXPECT_EQ(got[0].text, std::string(1000, 'x'));
  EXPECT_EQ(got[0].finish_reason, FinishReason::kNone);
  EXPECT_EQ(got[1].token_ids.size(), 1001u);
  EXPECT_EQ(got[1].token_ids[0], 1);
  EXPECT_EQ(got[1].token_ids[1000], 7);
  EXPECT_EQ(got[1].text_offsets, got[1].token_ids);  // of this test's deltas
  EXPECT_EQ(got[1].text.substr(1996), "yzyz!");
  EXPECT_EQ(got[1].finish_reason, FinishReason::kStop);
  EXPECT_EQ(got[1].stop_reason, StopReason(7));
  EXPECT_EQ(got[1].num_cached_tokens, 3);
  EXPECT_EQ(got[1].metrics->num_generation_tokens, 1001);
  EXPECT_EQ(got[2].text, "new");
  // What comes after a drain is news again.
  push({delta(1, 5, "a")});
  push({delta(1, 6, "b")});
  const auto more = drain();
  ASSERT_EQ(more.size(), 1u);
  EXPECT_EQ(more[0].token_ids, (Ids{5, 6}));
  EXPECT_EQ(more[0].text, "ab");
}

TEST(Outbox, LogprobsJoinAndOutputsStayApart) {
  Outbox outbox;
  std::vector<RequestDelta> used, got;
  for (TokenId token = 0; token < 3; ++token) {
    std::vector<RequestDelta> deltas(2);
    for (int32_t index = 0; index < 2; ++index) {
      RequestDelta& delta = deltas[index];
      delta.request_id = 7;
      delta.index = index;
      delta.token_ids = {token};
      delta.logprobs.resize(1);
      if (token == 0) delta.prompt_logprobs.resize(5);
    }
    outbox.Push(&deltas, &used);
  }
  outbox.Drain(milliseconds(0), &got);
  ASSERT_EQ(got.size(), 2u);
  for (int32_t index = 0; index < 2; ++index) {
    EXPECT_EQ(got[index].index, index);
    EXPECT_EQ(got[index].token_ids, (Ids{0, 1, 2}));
    EXPECT_EQ(got[index].logprobs.size(), 3u);
    EXPECT_EQ(got[index].prompt_logprobs.size(), 5u);
  }
}

TEST(Outbox, DeltasThatAHostGivesBackAreFilledAgain) {
  Outbox outbox;
  std::vector<RequestDelta> made(2), used, got;
  made[0].request_id = 1;
  made[0].token_ids.assign(100, 5);
  made[1].request_id = 2;
  const TokenId* memory = made[0].token_ids.data();
  outbox.Push(&made, &used);
  EXPECT_TRUE(made.empty());
  outbox.Drain(milliseconds(0), &got);
  ASSERT_EQ(got.size(), 2u);
  EXPECT_EQ(got[0].token_ids.data(), memory);
  outbox.Drain(milliseconds(0), &got);  // gives them back
  EXPECT_TRUE(got.empty());
  made.resize(1);
  outbox.Push(&made, &used);
  ASSERT_EQ(used.size(), 1u);
  made.resize(1);
  outbox.Push(&made, &used);  // the host is late, and one is there still
  ASSERT_EQ(used.size(), 1u);
}

TEST(Outbox, CloseWakesWhoWatchesTheDescriptor) {
  Outbox outbox;
  EXPECT_FALSE(Readable(outbox.event_fd()));
  outbox.Close();
  EXPECT_TRUE(Readable(outbox.event_fd()));
  std::vector<RequestDelta> got;
  outbox.Drain(kLong, &got);  // does not wait
  EXPECT_TRUE(got.empty());
  EXPECT_FALSE(Readable(outbox.event_fd()));  // told once: a loop that watches it does not spin
}

TEST(DeltaPlaces, FindsManyAndForgets) {
  DeltaPlaces places;
  for (int round = 0; round < 3; ++round) {
    for (size_t i = 0; i < 1000; ++i) EXPECT_EQ(places.FindOrAdd(7 + 64 * i, i), i);
    for (size_t i = 0; i < 1000; ++i) EXPECT_EQ(places.FindOrAdd(7 + 64 * i, 5000), i);
    places.Clear();
    EXPECT_TRUE(places.empty());
  }
}

TEST(EngineObserve, ARequestOutOfTimeEndsWithItsReason) {
  Gate gate;
  EngineCore engine(Sched(1), Kv(), std::make_unique<FakeExecutor>(Cycle, gate.Hook()), Letters());
  ASSERT_TRUE(engine.Add(MakeRequest(1, {0}, 3)).ok());
  gate.entered.acquire();
  auto late = MakeRequest(2, {0}, 3);
  late->arrival_ns = 1;  // long ago
  late->max_queue_ms = 5;
  ASSERT_TRUE(engine.Add(late).ok());
  gate.Open();
  auto outcomes = Collect(&engine, 2);
  EXPECT_EQ(outcomes[1].ids, (Ids{1, 2, 3}));
  EXPECT_EQ(outcomes[2].last.finish_reason, FinishReason::kError);
  EXPECT_NE(outcomes[2].last.error.find("limit 5 ms"), std::string::npos) << outcomes[2].last.error;
}

TEST(EngineObserve, AHostThatDoesNotDrainHoldsOneDeltaPerRequest) {
  EngineCore engine(Sched(), Kv(), std::make_unique<FakeExecutor>(Cycle), Letters());
  for (RequestId id = 1; id <= 10; ++id) ASSERT_TRUE(engine.Add(MakeRequest(id, {0}, 40)).ok());
  ASSERT_TRUE(engine.Pause(PauseMode::kWait).ok());
  const auto deltas = engine.Drain(milliseconds(0));
  EXPECT_EQ(deltas.size(), 10u);
  for (const RequestDelta& d : deltas) {
    EXPECT_EQ(d.token_ids.size(), 40u);
    EXPECT_EQ(d.text.size(), 40u);
    EXPECT_EQ(d.finish_reason, FinishReason::kLength);
  }
}

}  // namespace
}  // namespace fastllm
