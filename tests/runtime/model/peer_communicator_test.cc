// Small sums through boxes, everything else by another communicator: with threads in place of devices.
#include "runtime/device/peer_communicator.h"

#include <c10/util/BFloat16.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "runtime/comm/memory_hub.h"
#include "tests/runtime/model/peer_support.h"

namespace fastllm::runtime {
namespace {

using testing::Counting;
using testing::PeersOnThreads;
using testing::Ptr;

// work(communicator of the rank, the one below it) on a thread for each rank.
void OnAll(int32_t size, const std::function<void(const Ptr&, Counting&)>& work,
           const std::function<PeerOptions(int32_t)>& options = PeersOnThreads) {
  auto hub = MemoryHub::Create({size}, std::chrono::seconds(60));
  ASSERT_TRUE(hub.ok());
  std::vector<std::jthread> threads;
  for (int32_t r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      const Ptr host = (*hub)->RanksOf(r).tensor;
      const auto rest = std::make_shared<Counting>(host);
      const auto made = MakePeerCommunicator(*host, rest, options(r));
      ASSERT_TRUE(made.ok()) << made.status().ToString();
      work(*made, *rest);
    });
  }
}

std::vector<float> Values(int32_t rank, int64_t count) {
  std::mt19937 rng(static_cast<uint32_t>(rank * 1000 + count));
  std::normal_distribution<float> normal;
  std::vector<float> v(static_cast<size_t>(count));
  for (float& x : v) x = normal(rng);
  return v;
}

class PeerSizes : public ::testing::TestWithParam<int32_t> {};

TEST_P(PeerSizes, SmallSumsGoThroughTheBoxesAndLargeOnesDoNot) {
  const int32_t size = GetParam();
  OnAll(size, [&](const Ptr& ranks, Counting& rest) {
    EXPECT_NE(ranks.get(), &rest);
    EXPECT_EQ(ranks->size(), size);
    int large = 0;
    for (const int64_t count : {1, 7, 1024, 1025, 100, 1024, 3000, 2}) {
      std::vector<float> wanted = Values(0, count);
      for (int32_t r = 1; r < size; ++r) {
        const auto theirs = Values(r, count);
        for (int64_t i = 0; i < count; ++i) wanted[i] += theirs[i];
      }
      auto data = Values(ranks->rank(), count);
      ASSERT_TRUE(ranks->AllReduceSum({}, data.data(), count, CommType::kF32).ok());
      EXPECT_EQ(data, wanted) << count;
      large += count > 1024;
      EXPECT_EQ(rest.sums, large);
    }
    std::vector<c10::BFloat16> brief(2048, c10::BFloat16(1.0f + static_cast<float>(ranks->rank())));
    ASSERT_TRUE(ranks->AllReduceSum({}, brief.data(), 2048, CommType::kBF16).ok());
    EXPECT_EQ(static_cast<float>(brief[2047]), static_cast<float>(size * (size + 1) / 2));
    std::vector<int32_t> all(static_cast<size_t>(size));
    const int32_t own = ranks->rank();
    ASSERT_TRUE(ranks->AllGather({}, &own, all.data(), 1, CommType::kI32).ok());
    EXPECT_EQ(all.back(), size - 1);
    EXPECT_TRUE(ranks->Barrier({}).ok());
    EXPECT_EQ(rest.sums, large);
  });
}
INSTANTIATE_TEST_SUITE_P(Each, PeerSizes, ::testing::Values(2, 3, 8));

TEST(PeerCommunicatorTest, WhereOneDoesNotReachAnotherAllDoWithout) {
  const auto one_far = [](int32_t rank) {
    PeerOptions o = PeersOnThreads(rank);
    o.reach = [rank](int32_t) { return rank != 1; };
    return o;
  };
  OnAll(3, [](const Ptr& ranks, Counting& rest) { EXPECT_EQ(ranks.get(), &rest); }, one_far);
  OnAll(9, [](const Ptr& ranks, Counting& rest) { EXPECT_EQ(ranks.get(), &rest); });
}

TEST(PeerCommunicatorTest, RefusesWhatTheKernelsDoNotTake) {
  OnAll(2, [](const Ptr& ranks, Counting&) {
    alignas(8) float data[4] = {};
    EXPECT_EQ(ranks->AllReduceSum({}, data + 1, 2, CommType::kF32).code(), StatusCode::kInternal);
    EXPECT_EQ(ranks->AllReduceSum({}, data, 2, CommType::kI32).code(), StatusCode::kInternal);
  });
}

TEST(PeerCommunicatorTest, AbortEndsTheWait) {
  OnAll(2, [](const Ptr& ranks, Counting&) {
    float data[2] = {};
    const Status why = Status::Unavailable("rank 0 has gone");
    if (ranks->rank() == 0) {
      ranks->Abort(why);
    } else {
      std::jthread other([&] { ranks->Abort(why); });
      static_cast<void>(ranks->AllReduceSum({}, data, 2, CommType::kF32));  // rank 0 never comes
    }
    EXPECT_EQ(ranks->AllReduceSum({}, data, 2, CommType::kF32).message(), why.message());
  });
}

}  // namespace
}  // namespace fastllm::runtime
