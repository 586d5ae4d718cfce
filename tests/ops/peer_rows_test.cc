// The boxes of peer_rows_norm (contract/peer_rows.h) with threads in place of devices. The kernel is checked by
// cuda_check, on a GPU.
#include "ops/contract/peer_rows.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "tests/ops/peer_rows_threads.h"

namespace fastllm::ops {
namespace {

constexpr int64_t kRows = 6;
constexpr int32_t kHidden = 12;

struct Group {
  explicit Group(int32_t size) : boxes(size), epochs(size, std::vector<uint32_t>(kRows)) {
    for (auto& box : boxes) box.resize(static_cast<size_t>(PeerRowsBytes(size, kRows, kHidden * 4)) / 4);
  }
  PeerRowsBoxes Of(int32_t rank) {
    PeerRowsBoxes b{rank, static_cast<int32_t>(boxes.size()), kRows, kHidden * 4};
    for (size_t r = 0; r < boxes.size(); ++r) b.boxes[r] = boxes[r].data();
    b.epochs = epochs[rank].data();
    b.stop = &stop;
    return b;
  }
  std::vector<std::vector<uint32_t>> boxes, epochs;
  uint32_t stop = 0;
};

class PeerRowsSizes : public ::testing::TestWithParam<int32_t> {};

// Calls one behind another without the ranks meeting in between: a row of a box is filled again two calls later.
TEST_P(PeerRowsSizes, AddInTheOrderOfTheRanksAndNormalise) {
  const int32_t size = GetParam();
  Group group(size);
  std::mt19937 rng(static_cast<unsigned>(size));
  std::normal_distribution<float> normal;
  const auto draw = [&](int64_t count) {
    std::vector<float> v(static_cast<size_t>(count));
    for (float& x : v) x = normal(rng);
    return v;
  };
  const std::vector<int32_t> rows = {1, 6, 3, 6, 6, 2, 5, 6};
  std::vector<std::vector<std::vector<float>>> x(rows.size());
  for (size_t c = 0; c < rows.size(); ++c) {
    for (int32_t r = 0; r < size; ++r) x[c].push_back(draw(int64_t{rows[c]} * kHidden));
  }
  std::vector<float> wanted = draw(kRows * kHidden);
  const std::vector<float> weight = draw(kHidden);
  std::vector<std::vector<float>> residual(size, wanted), out(size, std::vector<float>(kRows * kHidden));
  std::vector<std::thread> threads;
  for (int32_t r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      for (size_t c = 0; c < rows.size(); ++c) {
        const RmsNormParams norm{out[r].data(), x[c][r].data(), residual[r].data(), weight.data(), rows[c], kHidden};
        ASSERT_TRUE(peer_threads::RowsNorm<float>({group.Of(r), norm, {}}));
      }
    });
  }
  for (std::thread& t : threads) t.join();
  for (size_t c = 0; c < rows.size(); ++c) {
    for (int32_t i = 0; i < rows[c] * kHidden; ++i) {
      float sum = x[c][0][i];
      for (int32_t r = 1; r < size; ++r) sum += x[c][r][i];
      wanted[i] = sum + wanted[i];
    }
  }
  for (int32_t r = 0; r < size; ++r) {
    EXPECT_EQ(residual[r], wanted) << "rank " << r;
    EXPECT_EQ(out[r], out[0]);
  }
  for (int64_t row = 0; row < kRows; ++row) {  // all of the last call
    double squares = 0;
    for (int32_t i = 0; i < kHidden; ++i) squares += double{wanted[row * kHidden + i]} * wanted[row * kHidden + i];
    for (int32_t i = 0; i < kHidden; ++i) {
      const double v = wanted[row * kHidden + i] / std::sqrt(squares / kHidden + 1e-5) * weight[i];
      EXPECT_NEAR(out[0][row * kHidden + i], v, std::abs(v) * 1e-5 + 1e-6);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Each, PeerRowsSizes, ::testing::Values(2, 3, 8));

TEST(PeerRowsTest, EveryRowHasAPlaceOfItsOwnInTheBox) {
  Group group(3);
  const PeerRowsBoxes b = group.Of(1);
  const auto begin = reinterpret_cast<uintptr_t>(b.boxes[1]);
  std::set<uintptr_t> bytes;
  for (const uint32_t epoch : {4u, 5u}) {
    for (const int32_t from : {0, 2}) {
      for (int64_t row = 0; row < kRows; ++row) {
        const auto data = reinterpret_cast<uintptr_t>(PeerRowAt(b, 1, from, row, epoch));
        for (uintptr_t i = 0; i < kHidden * 4; ++i) EXPECT_TRUE(bytes.insert(data + i - begin).second);
      }
    }
  }
  EXPECT_EQ(static_cast<int64_t>(bytes.size()), PeerRowsBytes(3, kRows, kHidden * 4));
  EXPECT_EQ(*bytes.begin(), 0u);
  EXPECT_EQ(static_cast<int64_t>(*bytes.rbegin()), PeerRowsBytes(3, kRows, kHidden * 4) - 1);
}

// A word of a box that is zero is one that has not come.
TEST(PeerRowsTest, NoDataLooksAsIfItHadNotCome) {
  const auto sent = [](uint32_t word) { return cuda::FromBox(cuda::ToBox(word)); };
  std::mt19937 rng(3);
  for (int i = 0; i < 1000000; ++i) {
    const auto word = static_cast<uint32_t>(rng());
    EXPECT_NE(cuda::ToBox(word), 0u);
    EXPECT_TRUE(word == 0xffffffffu || sent(word) == word) << word;
  }
  for (const uint32_t word : {0u, 1u, 0x80000000u, 0x80008000u, 0xfffffffeu, 0x7fffffffu}) EXPECT_EQ(sent(word), word);
  // A NaN stays one, in each half too.
  EXPECT_NE(cuda::ToBox(0xffffffffu), 0u);
  const uint32_t nan = sent(0xffffffffu);
  EXPECT_TRUE(std::isnan(std::bit_cast<float>(nan)));
  for (const uint32_t half : {nan >> 16, nan & 0xffffu}) {
    EXPECT_TRUE(std::isnan(std::bit_cast<float>(half << 16)));  // of bfloat16
    EXPECT_EQ(half & 0x7c00u, 0x7c00u);                         // of float16: the largest exponent,
    EXPECT_NE(half & 0x3ffu, 0u);                               // and not infinity
  }
}

// NaNs of every kind, zeros of both signs: a rank that waits for one of them comes to its end.
TEST(PeerRowsTest, OddValuesArrive) {
  Group group(2);
  std::vector<float> odd(kHidden, 1.0f);
  odd[0] = std::bit_cast<float>(0xffffffffu);
  odd[1] = 0.0f;
  odd[2] = -0.0f;
  odd[3] = -INFINITY;
  std::vector<float> zeros(kHidden, -0.0f), weight(kHidden, 1.0f);
  std::vector<std::vector<float>> residual(2, zeros), out(2, zeros);
  std::vector<std::thread> threads;
  for (int32_t r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      const RmsNormParams norm{out[r].data(), r == 0 ? odd.data() : zeros.data(), residual[r].data(), weight.data(), 1,
                               kHidden};
      EXPECT_TRUE(peer_threads::RowsNorm<float>({group.Of(r), norm, {}}));
    });
  }
  for (std::thread& t : threads) t.join();
  for (int32_t r = 0; r < 2; ++r) {
    EXPECT_TRUE(std::isnan(residual[r][0]));
    EXPECT_EQ(std::bit_cast<uint32_t>(residual[r][1]), 0u);
    EXPECT_EQ(std::bit_cast<uint32_t>(residual[r][2]), 0x80000000u);
    EXPECT_EQ(residual[r][3], -INFINITY);
    EXPECT_EQ(residual[r][4], 1.0f);
  }
}

TEST(PeerRowsTest, NobodyWaitsAfterAStop) {
  Group group(2);
  std::vector<float> data(kHidden, 1.0f), weight(kHidden, 1.0f), residual(kHidden);
  std::thread waits([&] {
    const RmsNormParams norm{data.data(), data.data(), residual.data(), weight.data(), 1, kHidden};
    EXPECT_FALSE(peer_threads::RowsNorm<float>({group.Of(0), norm, {}}));
  });
  std::atomic_ref<uint32_t>(group.stop).store(1);
  waits.join();
}

}  // namespace
}  // namespace fastllm::ops
