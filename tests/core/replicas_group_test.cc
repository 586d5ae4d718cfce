#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/replicas/engine_group.h"
#include "fake_engine.h"

namespace fastllm {
namespace {

using std::chrono::milliseconds;

// Makes fake engines and remembers them; one that is told to refuses.
class Makers {
 public:
  Result<std::unique_ptr<Engine>> Make(int32_t replica) {
    auto engine = std::make_unique<FakeEngine>();
    engine->info_.block_size = 4;
    engine->info_.num_kv_blocks = 1000;
    const std::lock_guard lock(mutex_);
    ++made_;
    changed_.notify_all();
    if (refusals_ > 0 && made_ > 2) {
      --refusals_;
      return Status::ResourceExhausted("no memory for replica " + std::to_string(replica));
    }
    engines_[replica] = engine.get();
    return std::unique_ptr<Engine>(std::move(engine));
  }
  // The engine that is in a replica's place now.
  FakeEngine& at(int32_t replica) {
    const std::lock_guard lock(mutex_);
    return *engines_.at(replica);
  }
  void Refuse(int times) {
    const std::lock_guard lock(mutex_);
    refusals_ = times;
  }
  void WaitMade(int count) {
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(changed_.wait_for(lock, std::chrono::seconds(60), [&] { return made_ >= count; }));
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int32_t, FakeEngine*> engines_;
  int made_ = 0, refusals_ = 0;
};

GenerationRequest Ask(int32_t first, int32_t n = 1) {
  GenerationRequest request;
  for (int32_t i = 0; i < 20; ++i) request.prompt_token_ids.push_back(first + i);
  request.sampling.n = n;
  return request;
}

RequestDelta News(uint64_t id, FinishReason reason = FinishReason::kNone, int32_t index = 0) {
  RequestDelta delta;
  delta.request_id = id;
  delta.index = index;
  delta.token_ids = {1};
  delta.finish_reason = reason;
  return delta;
}

class EngineGroupTest : public testing::Test {
 protected:
  void SetUp() override {
    options_.watch_interval = options_.first_restart = milliseconds(1);
    Start();
  }
  void Start() {
    group_ = EngineGroup::Create([this](int32_t replica) { return makers_.Make(replica); }, options_).value();
  }
  uint64_t Submit(int32_t first, int32_t wanted, int32_t n = 1) {
    GenerationRequest request = Ask(first, n);
    request.data_parallel_rank = wanted;
    return group_->Submit(std::move(request)).value();
  }
  // The next news, `count` at least.
  std::vector<RequestDelta> Take(size_t count) {
    std::vector<RequestDelta> all;
    while (all.size() < count) {
      std::vector<RequestDelta> some = group_->Drain(std::chrono::seconds(60));
      if (some.empty()) break;
      std::ranges::move(some, std::back_inserter(all));
    }
    EXPECT_EQ(all.size(), count);
    return all;
  }
  void WaitState(int32_t replica, ReplicaState state) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (group_->replicas()[static_cast<size_t>(replica)].state != state) {
      ASSERT_LT(std::chrono::steady_clock::now(), end) << ReplicaStateName(state);
      std::this_thread::yield();
    }
  }

  EngineGroupOptions options_;
  Makers makers_;
  std::unique_ptr<Engine> group_;
};

TEST_F(EngineGroupTest, HandlesNameTheirReplica) {
  const uint64_t a = Submit(0, 0), b = Submit(0, 1);
  EXPECT_EQ(ReplicaOfHandle(a), 0);
  EXPECT_EQ(ReplicaOfHandle(b), 1);
  EXPECT_NE(a, b);
  makers_.at(1).Say({News(1, FinishReason::kLength)});
  const std::vector<RequestDelta> news = Take(1);
  EXPECT_EQ(news[0].request_id, b);
  EXPECT_EQ(group_->replicas()[0].live, 1);
  EXPECT_EQ(group_->replicas()[1].live, 0);
  group_->Abort(a);
  group_->Abort(a + 99);
  EXPECT_EQ(makers_.at(0).aborted, (std::vector<uint64_t>{1, 100}));
  EXPECT_TRUE(makers_.at(1).aborted.empty());
}

TEST_F(EngineGroupTest, TheSamePrefixGoesToTheSameReplica) {
  std::vector<int32_t> first, second;
  for (int i = 0; i < 4; ++i) {
    first.push_back(ReplicaOfHandle(group_->Submit(Ask(0)).value()));
    second.push_back(ReplicaOfHandle(group_->Submit(Ask(1000)).value()));
  }
  EXPECT_EQ(std::ranges::count(first, first[0]), 4);
  EXPECT_EQ(std::ranges::count(second, second[0]), 4);
  EXPECT_NE(first[0], second[0]);
  EXPECT_EQ(group_->replicas()[0].routed_prefix + group_->replicas()[1].routed_prefix, 6);
}

TEST_F(EngineGroupTest, AFailedReplicaLosesItsRequestsAndIsMadeAnew) {
  const uint64_t lost = Submit(0, 0, 2), kept = Submit(0, 1);
  makers_.at(0).Say({News(1, FinishReason::kStop, 1)});
  EXPECT_EQ(Take(1)[0].index, 1);
  makers_.at(0).Fail("out of order");
  const std::vector<RequestDelta> news = Take(1);  // of the output that had not ended
  EXPECT_EQ(news[0].request_id, lost);
  EXPECT_EQ(news[0].index, 0);
  EXPECT_EQ(news[0].finish_reason, FinishReason::kError);
  EXPECT_EQ(news[0].error, "replica 0 failed: out of order");
  makers_.WaitMade(3);
  WaitState(0, ReplicaState::kServing);
  EXPECT_EQ(group_->replicas()[0].restarts, 1);
  EXPECT_EQ(group_->replicas()[0].reason, "out of order");
  EXPECT_TRUE(group_->health().ok());
  // The new engine counts from 1 again; its handles are others all the same.
  const uint64_t next = Submit(0, 0);
  EXPECT_NE(next, lost);
  group_->Abort(lost);
  EXPECT_TRUE(makers_.at(0).aborted.empty());
  makers_.at(0).Say({News(1)});
  EXPECT_EQ(Take(1)[0].request_id, next);
  makers_.at(1).Say({News(1)});
  EXPECT_EQ(Take(1)[0].request_id, kept);
}

TEST_F(EngineGroupTest, WhoWaitsForAReplicaHearsWhenItIsThere) {
  EXPECT_TRUE(group_->AwaitServing(milliseconds(0)).ok());  // one serves
  makers_.Refuse(1 << 30);
  for (const int32_t replica : {0, 1}) makers_.at(replica).Fail("fell over");
  const Status late = group_->AwaitServing(milliseconds(20));
  EXPECT_EQ(late.code(), StatusCode::kDeadlineExceeded);
  EXPECT_NE(late.message().find("0 is failed ("), std::string::npos) << late.message();
  EXPECT_NE(late.message().find("; waited for 20 ms"), std::string::npos) << late.message();
  std::thread repair([&] { makers_.Refuse(0); });
  EXPECT_TRUE(group_->AwaitServing(std::chrono::seconds(60)).ok());
  EXPECT_TRUE(group_->health().ok());
  repair.join();
}

TEST_F(EngineGroupTest, WhoWaitsForAReplicaHearsThatOneIsResumed) {
  for (const int32_t replica : {0, 1}) ASSERT_TRUE(group_->DrainReplica(replica).ok());
  EXPECT_EQ(group_->AwaitServing(milliseconds(20)).code(), StatusCode::kDeadlineExceeded);
  // Often, as the other thread may come to wait only when one serves again. Who is not told sleeps to the end.
  constexpr std::chrono::seconds kLong{60};
  for (int i = 0; i < 50; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    auto waited = std::async(std::launch::async, [&] { return group_->AwaitServing(kLong); });
    std::this_thread::yield();
    ASSERT_TRUE(group_->ResumeReplica(0).ok());
    ASSERT_TRUE(waited.get().ok());
    ASSERT_LT(std::chrono::steady_clock::now() - begin, kLong);
    ASSERT_TRUE(group_->DrainReplica(0).ok());
  }
}

TEST_F(EngineGroupTest, WhoWaitsForAReplicaHearsOfTheEnd) {
  makers_.Refuse(1 << 30);
  for (const int32_t replica : {0, 1}) makers_.at(replica).Fail("fell over");
  std::thread end([&] { group_->Shutdown(); });
  EXPECT_EQ(group_->AwaitServing(std::chrono::seconds(60)).code(), StatusCode::kUnavailable);
  end.join();
}

TEST_F(EngineGroupTest, AReplicaThatCannotBeMadeIsTriedAgain) {
  makers_.Refuse(2);
  makers_.at(0).Fail("once");
  makers_.WaitMade(5);
  WaitState(0, ReplicaState::kServing);
  EXPECT_EQ(group_->replicas()[0].reason, "no memory for replica 0");
}

TEST_F(EngineGroupTest, OthersTakeWhatAFailedOneWouldHave) {
  options_.first_restart = std::chrono::hours(1);
  Start();
  makers_.at(0).Fail("gone");
  for (int i = 0; i < 4; ++i) EXPECT_EQ(ReplicaOfHandle(group_->Submit(Ask(1000 * i)).value()), 1);
  GenerationRequest request = Ask(0);
  request.data_parallel_rank = 0;
  const Status refused = group_->Submit(request).status();
  EXPECT_EQ(refused.code(), StatusCode::kUnavailable);
  EXPECT_NE(refused.message().find("0 is failed (gone)"), std::string::npos) << refused.message();
  makers_.at(1).Fail("gone too");
  EXPECT_EQ(group_->Submit(Ask(0)).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(group_->health().code(), StatusCode::kUnavailable);
}

TEST_F(EngineGroupTest, DrainsAndRestartsOneReplica) {
  const uint64_t running = Submit(0, 0);
  ASSERT_TRUE(group_->DrainReplica(0).ok());
  EXPECT_EQ(group_->replicas()[0].state, ReplicaState::kDraining);
  EXPECT_EQ(group_->RestartReplica(0).code(), StatusCode::kFailedPrecondition);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(ReplicaOfHandle(group_->Submit(Ask(1000 * i)).value()), 1);
  makers_.at(0).Say({News(1, FinishReason::kLength)});
  EXPECT_EQ(Take(1)[0].request_id, running);
  WaitState(0, ReplicaState::kDrained);
  ASSERT_TRUE(group_->ResumeReplica(0).ok());
  EXPECT_EQ(ReplicaOfHandle(group_->Submit(Ask(5000)).value()), 0);
  makers_.at(0).Say({News(2, FinishReason::kLength)});
  Take(1);
  ASSERT_TRUE(group_->DrainReplica(0).ok());
  ASSERT_TRUE(group_->RestartReplica(0).ok());
  makers_.WaitMade(3);
  WaitState(0, ReplicaState::kServing);
  EXPECT_EQ(group_->DrainReplica(2).code(), StatusCode::kInvalidArgument);
}

TEST_F(EngineGroupTest, CountsGoOnOverARestart) {
  makers_.at(0).stats_.generation_tokens = 7;
  makers_.at(0).stats_.total_blocks = 100;
  makers_.at(1).stats_.generation_tokens = 5;
  makers_.at(1).stats_.total_blocks = 100;
  EXPECT_EQ(group_->stats().generation_tokens, 12);
  EXPECT_EQ(group_->stats().total_blocks, 200);
  makers_.at(0).Fail("gone");
  makers_.WaitMade(3);
  WaitState(0, ReplicaState::kServing);
  makers_.at(0).stats_.generation_tokens = 1;
  EXPECT_EQ(group_->stats().generation_tokens, 13);
  EXPECT_EQ(group_->stats().total_blocks, 100);
  EXPECT_EQ(group_->replicas()[0].stats.generation_tokens, 8);
}

TEST_F(EngineGroupTest, BadRanksAreNamed) {
  GenerationRequest request = Ask(0);
  request.data_parallel_rank = 2;
  const Status status = group_->Submit(request).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("got 2"), std::string::npos);
}

TEST_F(EngineGroupTest, ShutdownDeliversWhatIsLeft) {
  Submit(0, 0);
  makers_.at(0).Say({News(1, FinishReason::kAbort)});
  group_->Shutdown();
  EXPECT_EQ(group_->Drain(milliseconds(0)).size(), 1u);
  pollfd watched{group_->event_fd(), POLLIN, 0};
  static_cast<void>(poll(&watched, 1, 0));
  EXPECT_TRUE(group_->Drain(std::chrono::seconds(60)).empty());
  group_->Shutdown();
}

TEST(EngineGroupStart, TheReplicaThatCannotBeMadeIsNamed) {
  const auto made = EngineGroup::Create(
      [](int32_t replica) -> Result<std::unique_ptr<Engine>> {
        if (replica == 1) return Status::NotFound("no such file");
        return std::unique_ptr<Engine>(std::make_unique<FakeEngine>());
      },
      {});
  EXPECT_EQ(made.status().code(), StatusCode::kNotFound);
  EXPECT_EQ(made.status().message(), "replica 1: no such file");
}

}  // namespace
}  // namespace fastllm
