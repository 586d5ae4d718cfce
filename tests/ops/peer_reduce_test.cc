// The protocol of peer_reduce (cuda/comm/peer_steps.h) with threads in place of devices: sums, bits, and boxes that are
// used again and again. The kernel around it is checked by cuda_check, on a GPU.
#include "ops/contract/peer_reduce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "tests/ops/peer_threads.h"

namespace fastllm::ops {
namespace {

using peer_threads::Bf16;
using peer_threads::Reduce;

class Group {
 public:
  Group(int32_t size, int64_t capacity) : size_(size), capacity_(capacity), boxes_(size), epochs_(size) {
    for (auto& box : boxes_) box.resize(static_cast<size_t>(PeerBoxBytes(size, capacity)) / sizeof(uint64_t));
    for (auto& epochs : epochs_) epochs.resize(static_cast<size_t>(PeerBlocks(capacity)));
  }
  PeerReduceParams Params(int32_t rank) {
    PeerReduceParams p;
    p.rank = rank;
    p.size = size_;
    p.capacity = capacity_;
    for (int32_t r = 0; r < size_; ++r) p.boxes[r] = boxes_[r].data();
    p.epochs = epochs_[rank].data();
    p.stop = &stop_;
    return p;
  }
  void StartAt(uint32_t epoch) {
    for (auto& epochs : epochs_) std::ranges::fill(epochs, epoch);
  }
  void Stop() { std::atomic_ref<uint32_t>{stop_}.store(1); }
  // On a thread for each rank.
  void Run(const std::function<void(int32_t rank)>& work) const {
    std::vector<std::thread> threads;
    for (int32_t r = 0; r < size_; ++r) threads.emplace_back([&work, r] { work(r); });
    for (auto& t : threads) t.join();
  }

 private:
  const int32_t size_;
  const int64_t capacity_;
  uint32_t stop_ = 0;
  std::vector<std::vector<uint64_t>> boxes_;
  std::vector<std::vector<uint32_t>> epochs_;
};

struct Call {
  int64_t count;
  bool two_shots;
};

// Calls of many sizes one behind another, without the ranks meeting in between.
template <typename T>
void CheckCalls(Group& group, int32_t size, const std::vector<Call>& calls) {
  std::vector<std::vector<std::vector<T>>> data(calls.size());  // [call][rank]
  std::vector<std::vector<T>> wanted(calls.size());
  std::mt19937 rng(static_cast<unsigned>(size));
  std::normal_distribution<float> normal;
  for (size_t c = 0; c < calls.size(); ++c) {
    data[c].resize(static_cast<size_t>(size));
    for (int64_t i = 0; i < calls[c].count; ++i) {
      float sum = 0;
      for (auto& of_rank : data[c]) {
        of_rank.push_back(T(normal(rng)));
        const auto v = static_cast<float>(of_rank.back());
        sum = &of_rank == &data[c][0] ? v : sum + v;
      }
      wanted[c].push_back(T(sum));
    }
  }
  group.Run([&](int32_t rank) {
    for (size_t c = 0; c < calls.size(); ++c) {
      PeerReduceParams p = group.Params(rank);
      p.data = data[c][rank].data();
      p.count = calls[c].count;
      p.two_shots = calls[c].two_shots;
      ASSERT_TRUE(Reduce<T>(p));
    }
  });
  for (size_t c = 0; c < calls.size(); ++c) {
    for (int32_t r = 0; r < size; ++r) ASSERT_EQ(data[c][r], wanted[c]) << "call " << c << ", rank " << r;
  }
}

std::vector<Call> ManyCalls(int32_t two_shots) {  // 2: in turns
  std::vector<Call> calls;
  const int64_t counts[] = {1, 2, 3, 4, 5, 700, 1024, 3000, 17, 1027, 2999, 8};
  for (int i = 0; i < 36; ++i)
    calls.push_back({counts[(i * 7 + i / 12) % 12], two_shots == 2 ? i % 3 == 0 : two_shots == 1});
  return calls;
}

class PeerReduceSizes : public ::testing::TestWithParam<int32_t> {};

TEST_P(PeerReduceSizes, AddsInTheOrderOfTheRanksAndRoundsOnce) {
  for (const int32_t shots : {0, 1, 2}) {
    Group group(GetParam(), PeerUnits(3000 * 4));
    CheckCalls<float>(group, GetParam(), ManyCalls(shots));
    CheckCalls<Bf16>(group, GetParam(), ManyCalls(shots));
  }
}
INSTANTIATE_TEST_SUITE_P(Each, PeerReduceSizes, ::testing::Values(2, 3, 4, 5, 8));

TEST(PeerReduceTest, EpochsComeRoundWithoutZeroAndInTurns) {
  EXPECT_EQ(cuda::NextEpoch(0), 1u);
  EXPECT_EQ(cuda::NextEpoch(0xfffffffeu), 0xffffffffu);
  EXPECT_EQ(cuda::NextEpoch(0xffffffffu), 2u);
  Group group(3, PeerUnits(3000 * 4));
  group.StartAt(0xfffffff0u);
  CheckCalls<float>(group, 3, ManyCalls(2));
}

// Rows of several sizes and calls of the other kind in turns, on the same boxes.
template <typename T>
void CheckNorms(int32_t size, int32_t hidden) {
  constexpr int64_t kRows = 5;
  const int64_t row_bytes = hidden * static_cast<int64_t>(sizeof(T));
  Group group(size, std::max(PeerNormUnits(kRows, row_bytes), PeerUnits(3000 * 4)));
  std::mt19937 rng(static_cast<unsigned>(size * 100 + hidden));
  std::normal_distribution<float> normal;
  const auto draw = [&](int64_t count) {
    std::vector<T> v;
    for (int64_t i = 0; i < count; ++i) v.push_back(T(normal(rng)));
    return v;
  };
  std::vector<int64_t> rows = {1, 4, kRows, 2, kRows};
  std::vector<std::vector<std::vector<T>>> x(rows.size()), other(rows.size());
  std::vector<T> before = draw(kRows * hidden), weight = draw(hidden);
  std::vector<std::vector<T>> residual(size, before), out(size, std::vector<T>(kRows * hidden));
  for (size_t c = 0; c < rows.size(); ++c) {
    for (int32_t r = 0; r < size; ++r) {
      x[c].push_back(draw(rows[c] * hidden));
      other[c].push_back(draw(700));
    }
  }
  group.Run([&](int32_t rank) {
    for (size_t c = 0; c < rows.size(); ++c) {
      PeerReduceNormParams p{group.Params(rank), {}, {}};
      p.norm = {out[rank].data(), x[c][rank].data(), residual[rank].data(), weight.data()};
      p.norm.num_tokens = static_cast<int32_t>(rows[c]);
      p.norm.hidden = hidden;
      ASSERT_TRUE(peer_threads::ReduceNorm<T>(p));
      p.peers.data = other[c][rank].data();
      p.peers.count = 700;
      ASSERT_TRUE(Reduce<T>(p.peers));
    }
  });
  for (size_t c = 0; c < rows.size(); ++c) {
    for (int64_t i = 0; i < rows[c] * hidden; ++i) {
      float sum = 0.0f;
      for (int32_t r = 0; r < size; ++r) sum = r == 0 ? float(x[c][r][i]) : sum + float(x[c][r][i]);
      before[i] = T(float(T(sum)) + float(before[i]));
    }
  }
  for (int32_t r = 0; r < size; ++r) {
    ASSERT_EQ(residual[r], before) << "rank " << r;
    ASSERT_EQ(out[r], out[0]);
  }
  for (int64_t row = 0; row < kRows; ++row) {  // the last call had all rows
    double squares = 0;
    for (int64_t i = 0; i < hidden; ++i) squares += std::pow(double(float(before[row * hidden + i])), 2);
    for (int64_t i = 0; i < hidden; ++i) {
      const double wanted = float(before[row * hidden + i]) / std::sqrt(squares / hidden + 1e-5) * float(weight[i]);
      ASSERT_NEAR(float(out[0][row * hidden + i]), wanted, std::abs(wanted) * (sizeof(T) == 2 ? 0.005 : 1e-5) + 1e-6);
    }
  }
}

TEST_P(PeerReduceSizes, AddsTheResidualAndNormalisesRows) {
  CheckNorms<float>(GetParam(), 64);
  CheckNorms<float>(GetParam(), 1030);  // blocks that are not full
  CheckNorms<Bf16>(GetParam(), 1024);
  CheckNorms<Bf16>(GetParam(), 2052);
}

TEST(PeerReduceTest, RowsBeginWithABlockOfTheirOwn) {
  EXPECT_EQ(PeerNormUnits(3, 8), 3 * 256);
  EXPECT_EQ(PeerNormUnits(1, 8192), 1024);
  EXPECT_EQ(PeerNormUnits(2, 8200), 2 * 1280);
  EXPECT_EQ(PeerNormUnits(1, 12), 0);
  EXPECT_EQ(PeerNormUnits(1, 32768), 4096);
  EXPECT_EQ(PeerNormUnits(1, 32776), 0);
}

TEST(PeerReduceTest, NobodyWaitsAfterAStop) {
  for (const bool two_shots : {false, true}) {
    Group group(2, PeerUnits(64));
    std::vector<float> data(16, 1.0f);
    std::thread waits([&] {
      PeerReduceParams p = group.Params(0);
      p.data = data.data();
      p.count = 16;
      p.two_shots = two_shots;
      EXPECT_FALSE(Reduce<float>(p));
    });
    group.Stop();
    waits.join();
  }
}

TEST(PeerReduceTest, LinesOfABoxDoNotOverlapAndFillIt) {
  EXPECT_EQ(PeerBoxBytes(2, 1024), 2 * 3 * 1024 * 16);
  EXPECT_EQ(PeerUnits(8), 1);
  EXPECT_EQ(PeerUnits(9), 2);
  EXPECT_EQ(PeerBlocks(256), 1);
  EXPECT_EQ(PeerBlocks(257), 2);
  EXPECT_FALSE(PeerTwoShots(2, int64_t{1} << 20));
  EXPECT_TRUE(PeerTwoShots(8, 64 << 10));
  EXPECT_FALSE(PeerTwoShots(8, 8 << 10));
}

}  // namespace
}  // namespace fastllm::ops
