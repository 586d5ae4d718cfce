// Shared memory of processes: rings, and communicators that give the bits of those of threads.
#include "runtime/comm/shm_hub.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <csignal>
#include <functional>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/comm/memory_hub.h"
#include "runtime/shm/byte_ring.h"
#include "runtime/shm/shared_memory.h"

namespace fastllm::runtime {
namespace {

using std::chrono::milliseconds;

const ops::OpContext kContext;

// Ranks with a view of their own each; the last member drives.
class ShmWorld {
 public:
  explicit ShmWorld(const ParallelSizes& sizes, milliseconds timeout = milliseconds(60000), size_t ring = 4096)
      : plan_{sizes, {0, sizes.world()}, ring, timeout}, memory_(Make(sizeof(ShmTeamState) + plan_.Bytes())) {
    for (int32_t m = 0; m <= sizes.world(); ++m) teams_.emplace_back(state(), sizes.world() + 1, m);
    // Once: a rank and its memory count their meetings together.
    for (int32_t r = 0; r < sizes.world(); ++r) {
      ranks_.push_back(ShmRanksOf(plan_, memory_.data() + sizeof(ShmTeamState), &teams_[r]));
    }
  }
  ShmTeamState* state() { return reinterpret_cast<ShmTeamState*>(memory_.data()); }
  ShmTeam& team(int32_t member) { return teams_[member]; }
  const Ranks& RanksOf(int32_t rank) { return ranks_[rank]; }
  void OnAll(const std::function<void(const Ranks&)>& work) {
    std::vector<std::jthread> threads;
    for (int32_t r = 0; r < plan_.sizes.world(); ++r) threads.emplace_back([&, r] { work(RanksOf(r)); });
  }

 private:
  static SharedMemory Make(size_t bytes) {
    auto memory = SharedMemory::Create("test", bytes);
    EXPECT_TRUE(memory.ok()) << memory.status().ToString();
    return std::move(memory).value();
  }
  ShmHubPlan plan_;
  SharedMemory memory_;
  std::vector<ShmTeam> teams_;
  std::vector<Ranks> ranks_;
};

TEST(SharedMemoryTest, SaysWhatItCannotHave) {
  const auto memory = SharedMemory::Create("huge", size_t{1} << 62);
  EXPECT_EQ(memory.status().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(memory.status().message().find(std::to_string(size_t{1} << 62)), std::string::npos);
}

TEST(ByteRingTest, EveryReaderGetsEveryMessageWhateverItsSize) {
  ShmWorld world({3});
  constexpr size_t kCapacity = 1000;
  const auto memory = SharedMemory::Create("ring", ByteRing::Bytes(3, kCapacity));
  ASSERT_TRUE(memory.ok());
  const auto message = [](uint32_t i) {
    std::mt19937 rng(i);
    std::string text(i % 7 == 0 ? 0 : rng() % (i % 5 == 0 ? 5000 : 300), '\0');
    for (char& c : text) c = static_cast<char>(rng());
    return text;
  };
  std::vector<std::jthread> readers;
  for (int32_t r = 0; r < 3; ++r) {
    readers.emplace_back([&, r] {
      ByteRing ring(memory->data(), kCapacity, &world.team(r), 3, {0, 1, 2});
      std::string got;
      for (uint32_t i = 0; i < 1000; ++i) {
        ASSERT_TRUE(ring.Read(&got, kNoDeadline).ok());
        ASSERT_EQ(got, message(i));
      }
      EXPECT_FALSE(ring.HasMessage());
    });
  }
  ByteRing ring(memory->data(), kCapacity, &world.team(3), 3, {0, 1, 2});
  for (uint32_t i = 0; i < 1000; ++i) {
    const std::string text = message(i);
    const std::string_view parts[] = {std::string_view(text).substr(0, text.size() / 2),
                                      std::string_view(text).substr(text.size() / 2)};
    ASSERT_TRUE(ring.Write(parts, kNoDeadline).ok());
  }
}

class ShmSizes : public ::testing::TestWithParam<int32_t> {};

TEST_P(ShmSizes, SumsHaveTheBitsOfThoseOfThreads) {
  const int32_t size = GetParam();
  ShmWorld world({size});
  const auto hub = MemoryHub::Create({size}, milliseconds(60000));
  ASSERT_TRUE(hub.ok());
  for (const int64_t count : {1, 65, 4096, 4097, 30000, 200001}) {  // one meeting, two, several pieces
    std::vector<std::vector<float>> data(size, std::vector<float>(count));
    std::mt19937 rng(static_cast<uint32_t>(count));
    std::normal_distribution<float> normal;
    for (auto& v : data) std::ranges::generate(v, [&] { return normal(rng) * std::pow(10.0f, normal(rng)); });
    auto want = data;
    {
      std::vector<std::jthread> threads;
      for (int32_t r = 0; r < size; ++r) {
        threads.emplace_back([&, r] {
          EXPECT_TRUE((*hub)->RanksOf(r).tensor->AllReduceSum(kContext, want[r].data(), count, CommType::kF32).ok());
        });
      }
    }
    world.OnAll([&](const Ranks& ranks) {
      auto& mine = data[ranks.topology.rank];
      EXPECT_TRUE(ranks.tensor->AllReduceSum(kContext, mine.data(), count, CommType::kF32).ok());
    });
    for (int32_t r = 0; r < size; ++r) EXPECT_EQ(data[r], want[0]) << count;
  }
}

TEST_P(ShmSizes, GatherBroadcastAndBarrier) {
  const int32_t size = GetParam();
  ShmWorld world({size});
  constexpr int64_t kCount = 100000;  // more than a slot
  world.OnAll([&](const Ranks& ranks) {
    const int32_t me = ranks.topology.rank;
    std::vector<int32_t> all(kCount * size, -1);
    int32_t* mine = all.data() + kCount * me;  // in place
    for (int64_t i = 0; i < kCount; ++i) mine[i] = static_cast<int32_t>(me * kCount + i);
    ASSERT_TRUE(ranks.tensor->AllGather(kContext, mine, all.data(), kCount, CommType::kI32).ok());
    for (int64_t i = 0; i < kCount * size; ++i) ASSERT_EQ(all[i], static_cast<int32_t>(i));
    for (int32_t root = 0; root < size; ++root) {
      std::vector<int32_t> word(kCount, me);
      ASSERT_TRUE(ranks.tensor->Broadcast(kContext, word.data(), kCount, CommType::kI32, root).ok());
      ASSERT_EQ(word, std::vector<int32_t>(kCount, root));
    }
    ASSERT_TRUE(ranks.tensor->Barrier(kContext).ok());
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ShmSizes, ::testing::Values(2, 3, 4));

TEST(ShmHubTest, ManyRoundsOfManyGroups) {
  ShmWorld world({2, 2});
  world.OnAll([&](const Ranks& ranks) {
    for (int32_t round = 0; round < 300; ++round) {
      float x = static_cast<float>(ranks.topology.tp_rank() + round);
      ASSERT_TRUE(ranks.tensor->AllReduceSum(kContext, &x, 1, CommType::kF32).ok());
      ASSERT_EQ(x, static_cast<float>(2 * round + 1));
      std::vector<int32_t> word(3000, round);  // longer than the ring
      if (ranks.topology.first_stage()) {
        ASSERT_TRUE(ranks.pipeline->Send(kContext, word.data(), 3000, CommType::kI32, 1).ok());
      } else {
        std::vector<int32_t> got(3000);
        ASSERT_TRUE(ranks.pipeline->Recv(kContext, got.data(), 3000, CommType::kI32, 0).ok());
        ASSERT_EQ(got, word);
      }
    }
  });
}

TEST(ShmHubTest, ErrorsNameTheRanks) {
  ShmWorld differ({3});
  differ.OnAll([&](const Ranks& ranks) {
    float x[4] = {};
    const int64_t count = ranks.topology.rank == 2 ? 3 : 4;
    EXPECT_EQ(ranks.tensor->AllReduceSum(kContext, x, count, CommType::kF32).message(),
              "rank 2 (tp 2, pp 0) calls for all-reduce of 3 elements of type 0 where rank 0 (tp 0, pp 0) calls for "
              "all-reduce of 4 elements of type 0");
    EXPECT_FALSE(ranks.tensor->Barrier(kContext).ok());  // the group stays broken
  });
  ShmWorld size({1, 2});
  int32_t word[2] = {1, 2};
  ASSERT_TRUE(size.RanksOf(0).pipeline->Send(kContext, word, 2, CommType::kI32, 1).ok());
  EXPECT_EQ(size.RanksOf(1).pipeline->Recv(kContext, word, 1, CommType::kI32, 0).message(),
            "rank 0 (tp 0, pp 0) sent 8 bytes where rank 1 (tp 0, pp 1) expects 4");
}

// Rank 1 hangs; rank 0 waits for it, rank 2 (stage 1) waits for rank 0. Whoever's patience ends first names rank 1.
TEST(ShmHubTest, ALateRankIsNamedThroughThoseThatWaitForIt) {
  ShmWorld world({2, 2}, milliseconds(150));
  std::vector<Status> statuses(4);
  std::vector<std::jthread> threads;
  threads.emplace_back([&] { statuses[0] = world.RanksOf(0).tensor->Barrier(kContext); });
  threads.emplace_back([&] {
    int32_t word = 0;
    statuses[2] = world.RanksOf(2).pipeline->Recv(kContext, &word, 1, CommType::kI32, 0);
  });
  threads.clear();
  for (const int32_t r : {0, 2}) {
    EXPECT_EQ(statuses[r].code(), StatusCode::kDeadlineExceeded);
    EXPECT_EQ(statuses[r].message(), "rank 1 (tp 1, pp 0) did not answer the other ranks within 150 ms") << r;
  }
}

TEST(ShmTeamTest, AReasonThatIsBeingWrittenIsWaitedFor) {
  ShmWorld world({2});
  ShmTeamState& state = *world.state();
  state.broken = 1;  // as Break() is between its two steps
  std::atomic<bool> back = false;
  Status seen;
  std::jthread reader([&] {
    seen = world.team(0).broken();
    back = true;
  });
  while (!back && state.members[0].bell.sleepers == 0) std::this_thread::yield();
  state.code = static_cast<int32_t>(StatusCode::kDeadlineExceeded);
  std::ranges::copy(std::string_view("rank 1 is late"), state.text.begin());
  state.broken = 2;
  world.team(1).Ring(0);
  reader.join();
  EXPECT_EQ(seen.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(seen.message(), "rank 1 is late");
}

TEST(ShmTeamTest, AReasonThatNobodyWritesIsNotWaitedForForEver) {
  ShmWorld world({2});
  world.state()->broken = 1;
  const Status status = world.team(0).broken();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "the ranks have failed");
}

// Real processes: one is killed asleep in a meeting, the other gets the reason.
TEST(ShmHubTest, ProcessesMeetAndAKilledOneCanBeGivenUp) {
  ShmWorld world({3});
  std::vector<pid_t> children;
  for (int32_t r = 0; r < 2; ++r) {
    const pid_t child = fork();
    if (child == 0) {
      const Ranks ranks = world.RanksOf(r);
      float x = static_cast<float>(r + 1);
      const bool summed = ranks.tensor->AllReduceSum(kContext, &x, 1, CommType::kF32).ok() && x == 6.0f;
      const Status status = ranks.tensor->Barrier(kContext);  // rank 2 does not come
      _exit(summed && status.message() == "rank 0 is gone" ? 0 : 1);
    }
    ASSERT_GT(child, 0);
    children.push_back(child);
  }
  float x = 3.0f;
  ASSERT_TRUE(world.RanksOf(2).tensor->AllReduceSum(kContext, &x, 1, CommType::kF32).ok());
  EXPECT_EQ(x, 6.0f);
  kill(children[0], SIGKILL);
  int status = 0;
  ASSERT_EQ(waitpid(children[0], &status, 0), children[0]);
  EXPECT_TRUE(WIFSIGNALED(status));
  world.team(2).Break(Status::Unavailable("rank 0 is gone"));
  ASSERT_EQ(waitpid(children[1], &status, 0), children[1]);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace
}  // namespace fastllm::runtime
