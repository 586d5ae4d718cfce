#include "ops/contract/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "attention_support.h"
#include "core/base/check.h"
#include "support.h"

namespace fastllm::ops {
namespace {

using Attention = ArmTest;

TEST_P(Attention, MatchesFloat64OverShapesAndMixes) {
  const auto fn = Get<PagedAttentionFn>(OpId::kPagedAttention, kFeatureGqa);
  ForShapesAndMixes(/*narrow=*/false, [&](const Shape& s, const std::vector<Seq>& mix) {
    std::vector<int> ids(mix.size());
    std::iota(ids.begin(), ids.end(), 1);
    Batch b(s, mix, ids, 5);
    fn(b.Params(), {nullptr, 3});
    EXPECT_LT(MaxError(b.out, b.Reference()), 4e-6) << s.q_heads << "/" << s.kv_heads << " dim " << s.head_dim
                                                    << " block " << s.block_size << " seqs " << mix.size();
  });
}

// The output of `len` tokens computed in chunks, each alone or among others, in the order of positions.
std::vector<float> InChunks(PagedAttentionFn fn, const Shape& shape, int len, int chunk, bool mates, int threads) {
  std::vector<float> all;
  for (int done = 0; done < len; done += chunk) {
    const int n = std::min(chunk, len - done);
    const Seq mine{done + n, n};
    Batch b = mates ? Batch(shape, {{33, 7}, mine, {90, 1}, {12, 12}}, {50, 7, 51, 52}, done + 1)
                    : Batch(shape, {mine}, {7}, done + 9);
    fn(b.Params(), {nullptr, threads});
    const size_t row = static_cast<size_t>(shape.q_heads) * shape.head_dim;
    const size_t first = mates ? 7 * row : 0;
    all.insert(all.end(), b.out.begin() + first, b.out.begin() + first + n * row);
  }
  return all;
}

TEST_P(Attention, BitsDoNotDependOnChunkingBatchMatesThreadsOrLayout) {
  const auto fn = Get<PagedAttentionFn>(OpId::kPagedAttention, kFeatureGqa);
  for (const Shape s : {Shape{9, 3, 64, 16}, {5, 1, 40, 8}, {2, 2, 128, 32}, {7, 1, 20, 1}}) {
    const int len = s.q_heads == 9 ? 530 : 150;  // 530: three splits of the positions
    const auto want = InChunks(fn, s, len, 512, false, 1);
    for (const int chunk : {1, 2, 7, 16, 64, 65, 150, 257}) {
      if (len == 530 && chunk < 64) continue;  // minutes of filling caches
      for (const bool mates : {false, true}) {
        const auto got = InChunks(fn, s, len, chunk, mates, 1 + chunk % 3);
        ASSERT_EQ(got.size(), want.size());
        EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0)
            << "chunk " << chunk << " mates " << mates << " dim " << s.head_dim;
      }
    }
  }
}

// Long decode rows, which the op may split by positions, in every mix of threads and batch mates.
TEST_P(Attention, LongDecodeRowsMatchFloat64AndKeepTheirBitsOnAnyThreads) {
  const auto fn = Get<PagedAttentionFn>(OpId::kPagedAttention, kFeatureGqa);
  for (const Shape s : {Shape{9, 3, 64, 16}, {4, 1, 100, 32}, {2, 2, 24, 16}}) {
    for (const int len : {256, 257, 1030, 2100}) {
      Batch alone(s, {{len, 1}}, {7}, 3);
      fn(alone.Params(), {nullptr, 1});
      EXPECT_LT(MaxError(alone.out, alone.Reference()), 4e-6) << "dim " << s.head_dim << " len " << len;
      for (const int threads : {2, 8}) {
        Batch again(s, {{len, 1}}, {7}, 4);
        fn(again.Params(), {nullptr, threads});
        EXPECT_EQ(again.out, alone.out) << "len " << len << " threads " << threads;
        Batch mates(s, {{300, 2}, {len, 1}, {20, 1}, {700, 5}}, {8, 7, 9, 10}, 5);
        fn(mates.Params(), {nullptr, threads});
        EXPECT_LT(MaxError(mates.out, mates.Reference()), 4e-6);
        const size_t row = static_cast<size_t>(s.q_heads) * s.head_dim;
        EXPECT_TRUE(std::equal(alone.out.begin(), alone.out.end(), mates.out.begin() + 2 * row)) << "len " << len;
      }
    }
  }
}

TEST_P(Attention, LaterTokensNeverReachEarlierOnes) {
  const auto fn = Get<PagedAttentionFn>(OpId::kPagedAttention);
  const Shape s{6, 2, 64, 16};
  Batch b(s, {{100, 100}}, {3}, 1);
  fn(b.Params(), {});
  const auto clean = b.out;
  for (int h = 0; h < s.kv_heads; ++h) {
    b.k[b.CacheAt(0, 77, h) + 5] = std::nanf("");
    b.v[b.CacheAt(0, 77, h) + 5] = INFINITY;
  }
  fn(b.Params(), {});
  EXPECT_EQ(std::memcmp(b.out.data(), clean.data(), sizeof(float) * 77 * s.q_heads * s.head_dim), 0);
  EXPECT_TRUE(std::isnan(b.out[77 * s.q_heads * s.head_dim]));
}

TEST_P(Attention, LargeScoresDoNotOverflow) {
  const auto fn = Get<PagedAttentionFn>(OpId::kPagedAttention);
  Batch b({3, 1, 64, 16}, {{200, 3}}, {4}, 1);
  for (float& x : b.q) x *= 100.0f;
  fn(b.Params(), {});
  EXPECT_LT(MaxError(b.out, b.Reference()), 2e-4);  // scores near 1000: float32 keeps 6e-5 of them
}

TEST_P(Attention, RefusesLengthsOutsideTheBlockTable) {
  const auto fn = Get<PagedAttentionFn>(OpId::kPagedAttention);
  Batch b({2, 1, 16, 16}, {{20, 4}}, {1}, 1);
  b.seq_len[0] = 3;
  EXPECT_THROW(fn(b.Params(), {}), InternalError);
  b.seq_len[0] = b.max_blocks * 16 + 1;
  EXPECT_THROW(fn(b.Params(), {}), InternalError);
}

FASTLLM_INSTANTIATE_ARMS(Attention);

}  // namespace
}  // namespace fastllm::ops
