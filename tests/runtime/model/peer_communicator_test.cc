// Small sums through boxes, everything else by another communicator: with threads in place of devices.
#include "runtime/device/peer_communicator.h"

#include <c10/util/BFloat16.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
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

// Boxes of units have room for 4096 bytes, those of rows for 40 rows of 64 bytes: of two ranks alone.
PeerOptions WithRows(int32_t rank) {
  PeerOptions o = PeersOnThreads(rank);
  o.rows = 40;
  o.row_bytes = 64;
  return o;
}

TEST_P(PeerSizes, SumsWithANormAreThoseOfTheOpsApart) {
  const int32_t size = GetParam();
  OnAll(
      size,
      [&](const Ptr& ranks, Counting&) {
        constexpr int32_t kHidden = 16;
        EXPECT_TRUE(ranks->HasSumNorm(2, kHidden, CommType::kF32));
        EXPECT_EQ(ranks->HasSumNorm(40, kHidden, CommType::kF32), size == 2);
        EXPECT_FALSE(ranks->HasSumNorm(41, kHidden, CommType::kF32));
        EXPECT_FALSE(ranks->HasSumNorm(40, kHidden + 4, CommType::kF32));
        EXPECT_FALSE(ranks->HasSumNorm(2, kHidden, CommType::kI32));
        EXPECT_FALSE(ranks->HasSumNorm(2, 3, CommType::kF32));
        const std::vector<float> gain = Values(99, kHidden);
        for (const int32_t rows : {1, 2, 40, 2, 33}) {
          if (!ranks->HasSumNorm(rows, kHidden, CommType::kF32)) continue;
          const int64_t count = int64_t{rows} * kHidden;
          auto x = Values(ranks->rank(), count), residual = Values(50, count);
          std::vector<float> wanted = residual;
          for (int64_t i = 0; i < count; ++i) {
            float sum = Values(0, count)[i];
            for (int32_t r = 1; r < size; ++r) sum += Values(r, count)[i];
            wanted[i] = sum + wanted[i];
          }
          ops::RmsNormParams p{x.data(), x.data(), residual.data(), gain.data(), rows, kHidden};
          ASSERT_TRUE(ranks->AllReduceNorm({}, p, CommType::kF32, {}).ok());
          EXPECT_EQ(residual, wanted) << rows;
          float squares = 0;
          for (int32_t i = 0; i < kHidden; ++i) squares += wanted[i] * wanted[i];
          EXPECT_NEAR(x[3], wanted[3] / std::sqrt(squares / kHidden + p.eps) * gain[3], 1e-5);
        }
        ops::RmsNormParams many;
        many.num_tokens = 41;
        many.hidden = kHidden;
        EXPECT_EQ(ranks->AllReduceNorm({}, many, CommType::kF32, {}).code(), StatusCode::kInternal);
      },
      WithRows);
}

// The same boxes, for sums of 4 rows and more also in pieces.
PeerOptions WithPieces(int32_t rank, int64_t piece_rows) {
  PeerOptions o = WithRows(rank);
  o.least_cut_rows = 4;
  o.piece_rows = piece_rows;
  return o;
}

// Of a step: activations, residual, and the norm that takes them.
struct Sum {
  Sum(int32_t rank, int32_t of, int32_t num_rows)
      : x(Values(rank * 100 + of, int64_t{num_rows} * 16)), rows(num_rows) {}
  ops::RmsNormParams Rows(int64_t first, int64_t count, std::vector<float>* residual, const std::vector<float>& gain) {
    float* const from = x.data() + first * 16;
    return {from, from, residual->data() + first * 16, gain.data(), static_cast<int32_t>(count), 16};
  }
  std::vector<float> x;
  int32_t rows;
};

// As blocks do it: a piece is computed, and its sum begun, while the other's is under way. A step of each number of
// rows has six sums.
TEST(PeerCommunicatorTest, SumsInPiecesHaveTheBitsOfWholeOnes) {
  for (const int64_t piece_rows : {1, 3, 8}) {
    OnAll(
        2,
        [&](const Ptr& ranks, Counting&) {
          const std::vector<float> gain = Values(99, 16);
          EXPECT_EQ(ranks->FirstPiece(3, 16, CommType::kF32), 0);
          EXPECT_EQ(ranks->FirstPiece(41, 16, CommType::kF32), 0);
          EXPECT_EQ(ranks->FirstPiece(40, 8, CommType::kF32), 0);
          EXPECT_EQ(ranks->FirstPiece(40, 16, CommType::kI32), 0);
          for (const int32_t rows : {40, 16, 17, 33, 40}) {
            const int64_t first = ranks->FirstPiece(rows, 16, CommType::kF32);
            ASSERT_GE(first, rows / 2);
            ASSERT_LT(first, rows);
            EXPECT_EQ(first % piece_rows, 0);
            std::vector<float> whole = Values(50, int64_t{rows} * 16), cut = whole;
            const SumPiece pieces[] = {{0, 0}, {1, first}};
            const int64_t counts[] = {first, rows - first};
            std::vector<Sum> sums;
            for (int32_t s = 0; s < 6; ++s) sums.emplace_back(ranks->rank(), s, rows);
            const auto begin = [&](int32_t s, int32_t i) {
              return ranks->BeginSumNorm({}, pieces[i], sums[s].x.data() + pieces[i].first_row * 16, counts[i], 16,
                                         CommType::kF32);
            };
            for (int32_t i = 0; i < 2; ++i) ASSERT_TRUE(begin(0, i).ok());
            for (int32_t s = 0; s < 6; ++s) {
              Sum wanted(ranks->rank(), s, rows);
              ASSERT_TRUE(ranks->AllReduceNorm({}, wanted.Rows(0, rows, &whole, gain), CommType::kF32, {}).ok());
              for (int32_t i = 0; i < 2; ++i) {
                const auto p = sums[s].Rows(pieces[i].first_row, counts[i], &cut, gain);
                ASSERT_TRUE(ranks->EndSumNorm({}, pieces[i], p, CommType::kF32).ok());
                const bool last = s == 5;
                ASSERT_TRUE(last || begin(s + 1, i).ok());
              }
              EXPECT_EQ(cut, whole) << rows << " rows, sum " << s;
              EXPECT_EQ(sums[s].x, wanted.x) << rows << " rows, sum " << s;
            }
          }
        },
        [&](int32_t rank) { return WithPieces(rank, piece_rows); });
  }
}

TEST(PeerCommunicatorTest, PiecesOutOfTurnAreRefused) {
  const auto options = [](int32_t rank) { return WithPieces(rank, 1); };
  const auto work = [](const Ptr& ranks, Counting&) {
    std::vector<float> x(40 * 16), residual(40 * 16), gain(16);
    const ops::RmsNormParams p{x.data(), x.data(), residual.data(), gain.data(), 4, 16};
    const auto begin = [&](const SumPiece& piece, int64_t rows) {
      return ranks->BeginSumNorm({}, piece, x.data(), rows, 16, CommType::kF32);
    };
    const auto end = [&](const SumPiece& piece) { return ranks->EndSumNorm({}, piece, p, CommType::kF32); };
    EXPECT_NE(end({0, 0}).message().find("has not begun"), std::string::npos);
    for (const SumPiece& wrong : {SumPiece{}, SumPiece{2, 0}, SumPiece{1, -1}, SumPiece{1, 37}}) {
      EXPECT_EQ(begin(wrong, 4).code(), StatusCode::kInternal);
    }
    EXPECT_EQ(begin({0, 0}, 0).code(), StatusCode::kInternal);
    ASSERT_TRUE(begin({0, 0}, 4).ok());
    EXPECT_NE(begin({0, 0}, 4).message().find("before the last ended"), std::string::npos);
    EXPECT_EQ(end({1, 0}).code(), StatusCode::kInternal);
    EXPECT_EQ(end({0, 1}).code(), StatusCode::kInternal);
    EXPECT_TRUE(end({0, 0}).ok());
  };
  OnAll(2, work, options);
  OnAll(2, [](const Ptr& ranks, Counting&) {  // without boxes for them
    EXPECT_EQ(ranks->FirstPiece(40, 16, CommType::kF32), 0);
    EXPECT_EQ(ranks->BeginSumNorm({}, {0, 0}, nullptr, 4, 16, CommType::kF32).code(), StatusCode::kInternal);
    EXPECT_EQ(ranks->EndSumNorm({}, {0, 0}, {}, CommType::kF32).code(), StatusCode::kInternal);
  });
}

TEST(PeerCommunicatorTest, AbortEndsTheWaitForAPiece) {
  const auto options = [](int32_t rank) { return WithPieces(rank, 1); };
  const auto work = [](const Ptr& ranks, Counting&) {
    std::vector<float> x(8 * 16), residual(8 * 16), gain(16);
    const Status why = Status::Unavailable("rank 0 has gone");
    const auto begin = [&](int32_t i) {
      return ranks->BeginSumNorm({}, {i, 4 * i}, x.data() + i * 4 * 16, 4, 16, CommType::kF32);
    };
    const auto end = [&](int32_t i) {
      const int64_t at = int64_t{i} * 4 * 16;
      return ranks->EndSumNorm({}, {i, 4 * i}, {x.data() + at, x.data() + at, residual.data() + at, gain.data(), 4, 16},
                               CommType::kF32);
    };
    ASSERT_TRUE(begin(0).ok());
    if (ranks->rank() == 0) {
      ranks->Abort(why);  // between its pieces
    } else {
      ASSERT_TRUE(begin(1).ok());
      EXPECT_TRUE(end(0).ok());
      std::jthread other([&] { ranks->Abort(why); });
      static_cast<void>(end(1));  // of which rank 0 never tells
    }
    EXPECT_EQ(begin(1).message(), why.message());
    EXPECT_EQ(end(1).message(), why.message());
  };
  OnAll(2, work, options);
}

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
