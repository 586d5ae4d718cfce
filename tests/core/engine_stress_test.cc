#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/engine/engine_core.h"
#include "core/engine/outbox.h"
#include "core/engine/stats_cell.h"
#include "engine_fake_executor.h"
#include "engine_load.h"

namespace fastllm {
namespace {

constexpr int kThreads = 4;

struct Got {
  Ids ids;
  std::string text;
  std::vector<FinishReason> finishes;
};

TEST(EngineStress, FiveHundredRequestsFromFourThreadsWithAborts) {
  constexpr int kPerThread = 125;
  const auto table = Pairs();
  SchedConfig sched;
  sched.max_num_seqs = 16;
  sched.max_num_batched_tokens = 48;
  sched.max_model_len = 80;
  KvConfig kv;
  kv.num_blocks = 40;  // far fewer than 16 requests want: preemption
  kv.block_size = 4;
  EngineCore engine(sched, kv, std::make_unique<FakeExecutor>(NextToken), table);

  std::mutex mutex;
  std::map<RequestId, std::shared_ptr<const Request>> requests;
  std::map<RequestId, bool> abort_asked;
  std::vector<std::thread> clients;
  for (int t = 0; t < kThreads; ++t) {
    clients.emplace_back([&, t] {
      std::mt19937 rng(100 + t);
      for (int i = 0; i < kPerThread; ++i) {
        const RequestId id = 1 + t * kPerThread + i;
        const auto request = RandomRequest(id, &rng);
        const bool abort_it = rng() % 4 == 0, abort_older = rng() % 8 == 0;
        const RequestId older = 1 + t * kPerThread + rng() % (i + 1);
        {
          std::lock_guard lock(mutex);
          requests[id] = request;
          abort_asked[id] |= abort_it;
          if (abort_older) abort_asked[older] = true;
        }
        EXPECT_TRUE(engine.Add(request).ok());
        if (abort_it) engine.Abort(id);
        if (abort_older) engine.Abort(older);
      }
    });
  }
  std::map<RequestId, Got> got;
  for (int left = kThreads * kPerThread; left > 0;) {
    const auto deltas = engine.Drain(kLong);
    ASSERT_FALSE(deltas.empty()) << left << " requests did not end";
    const EngineStats stats = engine.stats();
    EXPECT_GE(stats.used_blocks, 0);
    for (const RequestDelta& d : deltas) {
      Got& g = got[d.request_id];
      EXPECT_TRUE(g.finishes.empty()) << "a delta after the last one";
      g.ids.insert(g.ids.end(), d.token_ids.begin(), d.token_ids.end());
      g.text += d.text;
      if (d.finish_reason == FinishReason::kNone) continue;
      g.finishes.push_back(d.finish_reason);
      --left;
    }
  }
  for (std::thread& client : clients) client.join();

  int num_aborted = 0, num_stopped = 0;
  ASSERT_EQ(got.size(), requests.size());
  for (const auto& [id, g] : got) {
    ASSERT_EQ(g.finishes.size(), 1u);
    const Expected e = Foretell(*requests[id], *table);
    if (g.finishes[0] == FinishReason::kAbort) {
      ++num_aborted;
      EXPECT_TRUE(abort_asked[id]);
      ASSERT_LE(g.ids.size(), e.ids.size());
      EXPECT_TRUE(std::equal(g.ids.begin(), g.ids.end(), e.ids.begin()));
    } else {
      num_stopped += g.finishes[0] == FinishReason::kStop;
      EXPECT_EQ(g.finishes[0], e.reason) << id;
      EXPECT_EQ(g.ids, e.ids) << id;
      EXPECT_EQ(g.text, e.text) << id;
    }
  }
  EXPECT_GT(num_aborted, 20);
  EXPECT_GT(num_stopped, 20);
  const EngineStats stats = engine.stats();
  EXPECT_EQ(stats.used_blocks, 0);
  EXPECT_EQ(stats.running, 0);
  EXPECT_EQ(stats.waiting, 0);
  EXPECT_EQ(stats.finished_requests, kThreads * kPerThread);
  EXPECT_GT(stats.preemptions, 0);
  EXPECT_GT(stats.prefix_hit_tokens, 0);
  EXPECT_TRUE(engine.health().ok());
}

TEST(EngineStress, ShutdownInTheMiddleStillEndsEveryAcceptedRequestOnce) {
  SchedConfig sched;
  sched.max_num_seqs = 8;
  sched.max_model_len = 80;
  KvConfig kv;
  kv.num_blocks = 64;
  kv.block_size = 4;
  for (int round = 0; round < 10; ++round) {
    EngineCore engine(sched, kv, std::make_unique<FakeExecutor>(NextToken), Pairs());
    std::atomic<int> accepted{0};
    std::vector<std::thread> clients;
    for (int t = 0; t < kThreads; ++t) {
      clients.emplace_back([&, t] {
        std::mt19937 rng(round * 10 + t);
        for (int i = 0; i < 50; ++i) {
          const Status status = engine.Add(RandomRequest(1 + t * 50 + i, &rng));
          EXPECT_TRUE(status.ok() || status.code() == StatusCode::kUnavailable) << status.ToString();
          accepted += status.ok();
        }
      });
    }
    std::map<RequestId, int> finishes;
    const auto count = [&](const std::vector<RequestDelta>& deltas) {
      for (const RequestDelta& d : deltas) finishes[d.request_id] += d.finish_reason != FinishReason::kNone;
    };
    count(engine.Drain(kLong));  // something has run
    engine.Shutdown();
    for (std::thread& client : clients) client.join();
    count(engine.Drain(milliseconds(0)));
    EXPECT_EQ(finishes.size(), static_cast<size_t>(accepted));
    for (const auto& [id, n] : finishes) EXPECT_EQ(n, 1) << id;
    EXPECT_EQ(engine.stats().used_blocks, 0);
  }
}

TEST(Outbox, ManyConsumersGetEachDeltaOnceAndNoWakeUpIsLost) {
  constexpr int kDeltas = 20000;
  Outbox outbox;
  std::vector<std::atomic<int>> seen(kDeltas);
  std::atomic<int> num_seen{0};
  const auto consume = [&](bool by_fd) {
    std::vector<RequestDelta> deltas;
    while (num_seen < kDeltas) {
      if (by_fd) {
        pollfd p{outbox.event_fd(), POLLIN, 0};
        poll(&p, 1, 20);  // another consumer may have taken it
      }
      outbox.Drain(milliseconds(by_fd ? 0 : 20), &deltas);
      for (const RequestDelta& d : deltas) {
        ++seen[d.request_id - 1];
        ++num_seen;
      }
    }
  };
  std::thread a(consume, true), b(consume, false);
  std::vector<RequestDelta> used;
  for (int i = 0; i < kDeltas;) {
    std::vector<RequestDelta> batch(std::min(1 + i % 7, kDeltas - i));
    for (RequestDelta& d : batch) d.request_id = ++i;
    outbox.Push(&batch, &used);
  }
  a.join();
  b.join();
  for (const auto& n : seen) EXPECT_EQ(n, 1);
  pollfd p{outbox.event_fd(), POLLIN, 0};
  EXPECT_EQ(poll(&p, 1, 0), 0);
}

TEST(StatsCell, ReadersNeverSeeHalfAWrite) {
  StatsCell cell;
  std::atomic<bool> done{false};
  std::vector<std::thread> readers;
  for (int t = 0; t < 2; ++t) {
    readers.emplace_back([&] {
      int64_t last = 0;
      while (!done) {
        const EngineStats s = cell.Load();
        EXPECT_EQ(s.steps, s.finished_requests);
        EXPECT_EQ(s.steps, s.used_blocks);
        EXPECT_GE(s.steps, last);
        last = s.steps;
      }
    });
  }
  for (int32_t i = 1; i <= 50000; ++i) {
    EngineStats s;
    s.steps = s.finished_requests = i;
    s.used_blocks = i;
    cell.Store(s);
  }
  done = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(cell.Load().steps, 50000);
}

}  // namespace
}  // namespace fastllm
