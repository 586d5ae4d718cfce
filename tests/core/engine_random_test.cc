// The engine with its real thread under random loads from several client threads: both policies, overlapped or not,
// tiny pools, windows, bounded queues, time limits, aborts, pauses, pins. What a request gives is foretold.
// FASTLLM_ENGINE_REQUESTS sets how many requests each seed runs (default 300).
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "core/engine/engine_core.h"
#include "engine_load.h"

namespace fastllm {
namespace {

constexpr int kClients = 3;

int NumRequests() {
  const char* text = std::getenv("FASTLLM_ENGINE_REQUESTS");
  return text == nullptr ? 300 : std::max(kClients, std::atoi(text));
}

class EngineRandom : public ::testing::TestWithParam<int> {
 protected:
  struct Sent {
    std::shared_ptr<const Request> request;
    bool aborted = false;
  };
  struct Got {
    Ids ids;
    std::string text;
    RequestDelta last;
    int num_finishes = 0;
  };

  void SetUp() override {
    std::mt19937 rng(GetParam());
    const auto random = [&rng](int lo, int hi) { return std::uniform_int_distribution<int>(lo, hi)(rng); };
    SchedConfig sched;
    sched.max_num_seqs = random(2, 16);
    sched.max_num_batched_tokens = random(16, 64);
    sched.max_model_len = 80;
    sched.async_scheduling = GetParam() % 2 == 0;
    sched.policy = GetParam() % 4 < 2 ? SchedulingPolicy::kPriority : SchedulingPolicy::kFcfs;
    sched.watermark = random(0, 1) == 0 ? 0.1f : 0.0f;
    sched.max_num_queued_reqs = random(0, 1) == 0 ? 20 : 0;
    KvConfig kv;
    kv.block_size = random(1, 6);
    kv.num_blocks = 1 + 2 * 80 / kv.block_size + random(2, 30);
    kv.kv_event_capacity = 64;
    kv.max_step_tokens = 2 * sched.max_num_batched_tokens;
    if (GetParam() % 3 == 0) kv.groups.push_back({KvGroupKind::kSlidingWindow, random(2, 12), 0});
    std::cout << "seed " << GetParam() << ", " << kv.num_blocks << " blocks of " << kv.block_size << ", "
              << sched.max_num_seqs << " seqs\n";
    engine_ = std::make_unique<EngineCore>(sched, kv, std::make_unique<FakeExecutor>(NextToken), table_);
  }

  // Adds until all are taken; a full queue is asked again.
  void Client(int client) {
    std::mt19937 rng(GetParam() * 100 + client);
    const int count = NumRequests() / kClients;
    for (int i = 0; i < count; ++i) {
      const auto id = static_cast<RequestId>(1 + client + i * kClients);
      const auto request = RandomRequest(id, &rng);
      request->priority = static_cast<int32_t>(rng() % 3);
      request->read_prefix_cache = rng() % 8 != 0;
      if (rng() % 5 == 0) request->extra_keys.cache_salt = "salt";
      if (rng() % 20 == 0) request->timeout_ms = 1 + static_cast<int64_t>(rng() % 3);
      const bool abort_it = rng() % 5 == 0;
      {
        std::lock_guard lock(mutex_);
        sent_[id] = {request, abort_it};
      }
      for (;;) {
        const Status status = engine_->Add(request);
        if (status.ok()) break;
        ASSERT_EQ(status.code(), StatusCode::kResourceExhausted) << status.ToString();
        EXPECT_GT(status.retry_after_ms(), 0);
        ++num_refused_;
        std::this_thread::yield();
      }
      if (abort_it) engine_->Abort(id);
    }
  }

  // What an operator does meanwhile.
  void Operate() {
    std::mt19937 rng(GetParam());
    uint64_t next_event = 0, lost = 0;
    while (!done_) {
      const KvEventBatch batch = engine_->DrainKvEvents(16);
      for (const KvEvent& event : batch.events) {
        EXPECT_GE(event.sequence, next_event);
        next_event = event.sequence + 1;
      }
      EXPECT_GE(batch.num_lost, lost);
      lost = batch.num_lost;
      const Ids prefix = RandomRequest(1, &rng)->prompt;
      switch (rng() % 4) {
        case 0: EXPECT_TRUE(engine_->PinPrefix(prefix, {}, static_cast<int32_t>(rng() % 4), 2).ok()); break;
        case 1: EXPECT_LT(engine_->CountCachedTokens(prefix, {}).value(), static_cast<int32_t>(prefix.size())); break;
        case 2: (void)engine_->ResetPrefixCache(); break;
        default:
          EXPECT_TRUE(engine_->Pause(rng() % 2 == 0 ? PauseMode::kKeep : PauseMode::kWait).ok());
          EXPECT_TRUE(engine_->Resume().ok());
      }
      const EngineStats s = engine_->stats();
      EXPECT_LE(s.used_blocks, s.total_blocks);
      EXPECT_LE(s.waiting_paused + s.waiting_preempted, s.waiting);
      EXPECT_EQ(s.finished_requests, s.finished_stop + s.finished_length + s.finished_abort + s.finished_error);
    }
  }

  void Take(const RequestDelta& delta) {
    Got& g = got_[delta.request_id];
    EXPECT_EQ(g.num_finishes, 0) << "a delta after the last one of " << delta.request_id;
    g.ids.insert(g.ids.end(), delta.token_ids.begin(), delta.token_ids.end());
    g.text += delta.text;
    g.last = delta;
    g.num_finishes += delta.finish_reason != FinishReason::kNone;
  }

  void CheckOutcome(RequestId id, const Got& g) {
    const Sent& sent = sent_[id];
    const Expected e = Foretell(*sent.request, *table_);
    ASSERT_EQ(g.num_finishes, 1) << id;
    if (g.last.finish_reason == FinishReason::kAbort || g.last.finish_reason == FinishReason::kError) {
      EXPECT_TRUE(g.last.finish_reason == FinishReason::kAbort ? sent.aborted : sent.request->timeout_ms > 0) << id;
      ASSERT_LE(g.ids.size(), e.ids.size());
      EXPECT_TRUE(std::equal(g.ids.begin(), g.ids.end(), e.ids.begin())) << id;
      return;
    }
    EXPECT_EQ(g.last.finish_reason, e.reason) << id;
    EXPECT_EQ(g.ids, e.ids) << id;
    EXPECT_EQ(g.text, e.text) << id;
  }

  const std::shared_ptr<const TokenTable> table_ = Pairs();
  std::unique_ptr<EngineCore> engine_;
  std::mutex mutex_;
  std::map<RequestId, Sent> sent_;
  std::map<RequestId, Got> got_;
  std::atomic<int64_t> num_refused_{0};
  std::atomic<bool> done_{false};
};

TEST_P(EngineRandom, EveryRequestEndsOnceWithWhatIsForetold) {
  std::vector<std::thread> threads;
  for (int client = 0; client < kClients; ++client) threads.emplace_back([this, client] { Client(client); });
  threads.emplace_back([this] { Operate(); });
  std::vector<RequestDelta> deltas;
  for (int left = NumRequests() / kClients * kClients; left > 0;) {
    engine_->DrainInto(kLong, &deltas);
    if (deltas.empty()) {
      ADD_FAILURE() << left << " requests did not end";
      break;
    }
    for (const RequestDelta& delta : deltas) {
      Take(delta);
      left -= delta.finish_reason != FinishReason::kNone;
    }
  }
  done_ = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(got_.size(), sent_.size());
  for (const auto& [id, g] : got_) CheckOutcome(id, g);
  const EngineStats stats = engine_->stats();
  EXPECT_EQ(stats.used_blocks + stats.running + stats.waiting + stats.queued_tokens, 0);
  EXPECT_EQ(stats.finished_requests, static_cast<int64_t>(sent_.size()));
  EXPECT_TRUE(engine_->health().ok()) << engine_->health().ToString();
  std::cout << stats.steps << " steps, " << stats.preemptions << " preemptions, " << num_refused_ << " refused\n";
}

INSTANTIATE_TEST_SUITE_P(Seeds, EngineRandom, ::testing::Range(1, 7));

}  // namespace
}  // namespace fastllm
