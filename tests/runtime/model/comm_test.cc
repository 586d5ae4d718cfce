// Topology, and communicators over memory: results, order, and what a rank that fails, is late or strays does.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/comm/memory_hub.h"
#include "runtime/comm/topology.h"

namespace fastllm::runtime {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLong{60000};
const ops::OpContext kContext;

std::unique_ptr<MemoryHub> Hub(const ParallelSizes& sizes, milliseconds timeout = kLong) {
  auto hub = MemoryHub::Create(sizes, timeout);
  EXPECT_TRUE(hub.ok()) << hub.status().ToString();
  return std::move(hub).value();
}

// work(ranks) on a thread for each rank.
void OnAll(const MemoryHub& hub, int32_t world, const std::function<void(const Ranks&)>& work) {
  std::vector<std::jthread> threads;
  for (int32_t r = 0; r < world; ++r) threads.emplace_back([&, r] { work(hub.RanksOf(r)); });
}

TEST(TopologyTest, RanksAndCoordinatesAreOneToOne) {
  ParallelSizes sizes{3, 2, 2};
  std::vector<int32_t> seen;
  for (int32_t dp = 0; dp < 2; ++dp) {
    for (int32_t pp = 0; pp < 2; ++pp) {
      for (int32_t tp = 0; tp < 3; ++tp) {
        const RankTopology t{sizes, static_cast<int32_t>(seen.size())};
        EXPECT_EQ(t.coordinates(), (RankCoordinates{tp, pp, dp}));
        EXPECT_EQ(t.RankOf({tp, pp, dp}), t.rank);
        seen.push_back(t.rank);
      }
    }
  }
  const RankTopology t{sizes, 7};  // tp 1, pp 0, dp 1
  EXPECT_EQ(t.TensorGroup(), (std::vector<int32_t>{6, 7, 8}));
  EXPECT_EQ(t.PipelineGroup(), (std::vector<int32_t>{7, 10}));
  EXPECT_EQ(t.DataGroup(), (std::vector<int32_t>{1, 7}));
  EXPECT_EQ(t.output_rank(), 9);
  EXPECT_EQ(t.name(), "rank 7 (tp 1, pp 0, dp 1)");
  EXPECT_EQ((RankTopology{{2, 2}, 3}.name()), "rank 3 (tp 1, pp 1)");
}

TEST(TopologyTest, RefusesWhatCannotBe) {
  EXPECT_EQ(RankTopology::Create({0, 1}, 0).status().message(), "tensor_parallel_size is 0; must be at least 1");
  EXPECT_EQ(RankTopology::Create({2, 2}, 4).status().message(), "rank is 4; must be in [0, 3]");
  EXPECT_EQ(RankTopology::Create({2, 1, 1, 2}, 0).status().code(), StatusCode::kUnimplemented);
  EXPECT_EQ(RankTopology::Create({70000, 70000}, 0).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(RankTopology::Create({2, 2}, 3).ok());
}

class Sizes : public ::testing::TestWithParam<int32_t> {};

TEST_P(Sizes, AllReduceSumsInOrderOfRanksAndGivesAllTheSameBits) {
  const int32_t size = GetParam();
  const auto hub = Hub({size});
  for (const int64_t count : {1, 63, 64, 65, 1000, 4097}) {
    std::vector<std::vector<float>> data(size, std::vector<float>(count));
    std::mt19937 rng(static_cast<uint32_t>(count));
    std::normal_distribution<float> normal;
    for (auto& v : data) std::ranges::generate(v, [&] { return normal(rng) * std::pow(10.0f, normal(rng)); });
    std::vector<float> want = data[0];
    for (int32_t r = 1; r < size; ++r) {
      for (int64_t i = 0; i < count; ++i) want[i] += data[r][i];
    }
    OnAll(*hub, size, [&](const Ranks& ranks) {
      auto& mine = data[ranks.topology.rank];
      EXPECT_TRUE(ranks.tensor->AllReduceSum(kContext, mine.data(), count, CommType::kF32).ok());
    });
    for (const auto& v : data) EXPECT_EQ(v, want);
  }
}

TEST_P(Sizes, GatherBroadcastAndBarrier) {
  const int32_t size = GetParam();
  const auto hub = Hub({size});
  std::atomic<int32_t> arrived{0};
  OnAll(*hub, size, [&](const Ranks& ranks) {
    const int32_t me = ranks.topology.rank;
    std::vector<int32_t> all(3 * size, -1);
    int32_t* mine = all.data() + 3 * me;  // in place
    for (int i = 0; i < 3; ++i) mine[i] = 10 * me + i;
    EXPECT_TRUE(ranks.tensor->AllGather(kContext, mine, all.data(), 3, CommType::kI32).ok());
    for (int32_t i = 0; i < 3 * size; ++i) EXPECT_EQ(all[i], 10 * (i / 3) + i % 3);
    for (int32_t root = 0; root < size; ++root) {
      std::vector<int32_t> word = {me, me + 1};
      EXPECT_TRUE(ranks.tensor->Broadcast(kContext, word.data(), 2, CommType::kI32, root).ok());
      EXPECT_EQ(word, (std::vector<int32_t>{root, root + 1}));
    }
    ++arrived;
    EXPECT_TRUE(ranks.tensor->Barrier(kContext).ok());
    EXPECT_EQ(arrived.load(), size);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Sizes, ::testing::Values(2, 3, 4, 7));

TEST(MemoryHubTest, ManyRoundsOfManyGroups) {
  const auto hub = Hub({2, 3});
  OnAll(*hub, 6, [&](const Ranks& ranks) {
    for (int32_t round = 0; round < 500; ++round) {
      float x = static_cast<float>(ranks.topology.tp_rank() + round);
      ASSERT_TRUE(ranks.tensor->AllReduceSum(kContext, &x, 1, CommType::kF32).ok());
      ASSERT_EQ(x, static_cast<float>(2 * round + 1));
      float y = static_cast<float>(ranks.topology.pp_rank());
      ASSERT_TRUE(ranks.pipeline->AllReduceSum(kContext, &y, 1, CommType::kF32).ok());
      ASSERT_EQ(y, 3.0f);
    }
  });
}

TEST(MemoryHubTest, SixteenBitSumsAreRoundedOnce) {
  const auto hub = Hub({3});
  OnAll(*hub, 3, [&](const Ranks& ranks) {
    // 256 + 0.75 + 0.75: bfloat16 has steps of 2 there, and adding one after the other would stay at 256.
    const float value = ranks.topology.rank == 0 ? 256.0f : 0.75f;
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    auto half = static_cast<uint16_t>(bits >> 16);
    ASSERT_TRUE(ranks.tensor->AllReduceSum(kContext, &half, 1, CommType::kBF16).ok());
    EXPECT_EQ(half, 0x4381);  // 258
  });
}

TEST(MemoryHubTest, MessagesArriveInOrderAndASenderDoesNotWaitForThem) {
  const auto hub = Hub({1, 2});
  const Ranks first = hub->RanksOf(0), second = hub->RanksOf(1);
  for (int32_t i = 0; i < 20; ++i) {
    ASSERT_TRUE(first.pipeline->Send(kContext, &i, 1, CommType::kI32, 1).ok());
  }
  for (int32_t i = 0; i < 20; ++i) {
    int32_t got = -1;
    ASSERT_TRUE(second.pipeline->Recv(kContext, &got, 1, CommType::kI32, 0).ok());
    EXPECT_EQ(got, i);
  }
}

TEST(MemoryHubTest, AMessageOfAnotherSizeNamesItsSender) {
  const auto hub = Hub({1, 2});
  const Ranks first = hub->RanksOf(0), second = hub->RanksOf(1);
  int32_t word[2] = {1, 2};
  ASSERT_TRUE(first.pipeline->Send(kContext, word, 2, CommType::kI32, 1).ok());
  const Status status = second.pipeline->Recv(kContext, word, 1, CommType::kI32, 0);
  EXPECT_EQ(status.message(), "rank 0 (tp 0, pp 0) sent 8 bytes where rank 1 (tp 0, pp 1) expects 4");
  EXPECT_EQ(first.pipeline->Send(kContext, word, 1, CommType::kI32, 1).message(), status.message());
}

TEST(MemoryHubTest, CallsThatDifferNameTheRanks) {
  const auto hub = Hub({3});
  OnAll(*hub, 3, [&](const Ranks& ranks) {
    float x[4] = {};
    const int64_t count = ranks.topology.rank == 2 ? 3 : 4;
    const Status status = ranks.tensor->AllReduceSum(kContext, x, count, CommType::kF32);
    EXPECT_EQ(status.code(), StatusCode::kInternal);
    EXPECT_EQ(status.message(),
              "rank 2 (tp 2, pp 0) calls for all-reduce of 3 elements of type 0 where rank 0 (tp 0, pp 0) calls for "
              "all-reduce of 4 elements of type 0");
    EXPECT_FALSE(ranks.tensor->Barrier(kContext).ok());  // the group stays broken
  });
}

TEST(MemoryHubTest, AnAbortWakesAllThatWait) {
  const auto hub = Hub({3, 2});
  std::atomic<int32_t> woken{0};
  std::vector<std::jthread> threads;
  for (int32_t r = 0; r < 6; ++r) {
    if (r == 1) continue;  // never comes; its stage's partners and, behind them, the next stage wait
    threads.emplace_back([&, ranks = hub->RanksOf(r)] {
      const Status status =
          ranks.topology.first_stage() ? ranks.tensor->Barrier(kContext) : ranks.pipeline->Barrier(kContext);
      EXPECT_EQ(status.message(), "rank 1 is gone");
      EXPECT_EQ(status.code(), StatusCode::kUnavailable);
      ++woken;
    });
  }
  hub->Abort(Status::Unavailable("rank 1 is gone"));
  threads.clear();
  EXPECT_EQ(woken.load(), 5);
  EXPECT_FALSE(hub->RanksOf(1).tensor->Barrier(kContext).ok());
}

// Rank 1 hangs; rank 0 waits for it, rank 2 (stage 1) waits for rank 0. Whoever's patience ends first names rank 1.
TEST(MemoryHubTest, TheTimeoutIsThatOfWaitsThatBeginLater) {
  const auto hub = Hub({2});
  hub->SetTimeout(milliseconds(20));
  const Status status = hub->RanksOf(0).tensor->Barrier({});
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(status.message(), "rank 1 (tp 1, pp 0) did not answer the other ranks within 20 ms");
}

TEST(MemoryHubTest, ALateRankIsNamedThroughThoseThatWaitForIt) {
  const auto hub = Hub({2, 2}, milliseconds(150));
  std::vector<Status> statuses(4);
  std::vector<std::jthread> threads;
  threads.emplace_back([&, ranks = hub->RanksOf(0)] { statuses[0] = ranks.tensor->Barrier(kContext); });
  threads.emplace_back([&, ranks = hub->RanksOf(2)] {
    int32_t word = 0;
    statuses[2] = ranks.pipeline->Recv(kContext, &word, 1, CommType::kI32, 0);
  });
  threads.clear();
  for (const int32_t r : {0, 2}) {
    EXPECT_EQ(statuses[r].code(), StatusCode::kDeadlineExceeded);
    EXPECT_EQ(statuses[r].message(), "rank 1 (tp 1, pp 0) did not answer the other ranks within 150 ms") << r;
  }
}

}  // namespace
}  // namespace fastllm::runtime
