// feed_tokens, keep_tokens, random_fill.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "core/base/check.h"
#include "ops/contract/attention.h"
#include "ops/contract/feed.h"
#include "ops/contract/random_fill.h"
#include "ops/cpu/isa.h"
#include "support.h"

namespace fastllm::ops {
namespace {

template <typename Fn>
Fn Op(OpId op) {
  auto r = BuiltinOps().Resolve<Fn>({op, Device::kCpu, DType::kF32});
  EXPECT_TRUE(r.ok()) << r.status().ToString();
  return *r;
}

struct Feed {
  std::vector<int32_t> planned = {7, -1, 3, -4};
  std::vector<int32_t> last = {100, 101, 102, 103};
  std::vector<int32_t> packed = {1, 2, 3, 4, 5, 6};
  std::vector<int32_t> ids = std::vector<int32_t>(4, -9);
  std::vector<int32_t> table = std::vector<int32_t>(10, -9);
  int32_t width = 3;

  void Run() {
    Op<FeedTokensFn>(OpId::kFeedTokens)(
        {ids.data(), planned.data(), last.data(), table.data(), packed.data(), &width, 4, 2, 5, 4}, {});
  }
};

TEST(FeedTokens, TakesIdsFromThePlanOrFromWhatWasKept) {
  Feed f;
  f.Run();
  EXPECT_EQ(f.ids, std::vector<int32_t>({7, 100, 3, 103}));
  EXPECT_EQ(f.table, std::vector<int32_t>({1, 2, 3, -9, -9, 4, 5, 6, -9, -9}));
}

TEST(FeedTokens, RefusesASlotAndAWidthPastTheirLimits) {
  Feed slot;
  slot.planned[2] = -5;
  EXPECT_THROW(slot.Run(), InternalError);
  Feed width;
  width.width = 6;
  EXPECT_THROW(width.Run(), InternalError);
}

TEST(KeepTokens, SkipsNegativeSlotsAndKeepsATokenThatExists) {
  std::vector<int32_t> last = {1, 1, 1, 1};
  const std::vector<int32_t> tokens = {7, -1, 9, 11};
  std::vector<int32_t> slots = {3, 0, -1, 2};
  const auto keep = Op<KeepTokensFn>(OpId::kKeepTokens);
  keep({last.data(), tokens.data(), slots.data(), 4, 4}, {});
  EXPECT_EQ(last, std::vector<int32_t>({0, 1, 11, 7}));
  slots[1] = 4;
  EXPECT_THROW(keep({last.data(), tokens.data(), slots.data(), 4, 4}, {}), InternalError);
}

std::vector<float> Fill(int64_t first, int64_t count, int32_t threads) {
  std::vector<float> out(static_cast<size_t>(count));
  Op<RandomFillFn>(OpId::kRandomFill)({out.data(), 42, first, count, 1.0f, 0.5f}, {nullptr, threads});
  return out;
}

TEST(RandomFill, AnElementDependsOnKeyAndIndexAlone) {
  const auto whole = Fill(0, 200000, 2);
  EXPECT_EQ(whole, Fill(0, 200000, 1));
  EXPECT_EQ(std::vector<float>(whole.begin() + 777, whole.begin() + 877), Fill(777, 100, 1));
  // SplitMix64 of 42, its published generator: the first output is 0xbdd732262feb6e95.
  EXPECT_EQ(whole[0], 1.0f + 0.5f * (static_cast<float>(0xbdd732262feb6e95ull >> 40) * 0x1p-23f - 1.0f));
}

TEST(RandomFill, IsUniformAboutTheMean) {
  const auto x = Fill(0, 1000000, 2);
  double sum = 0, squares = 0;
  for (const float v : x) {
    sum += v - 1.0;
    squares += (v - 1.0) * (v - 1.0);
  }
  const double n = static_cast<double>(x.size());
  EXPECT_LT(std::abs(sum / n), 5 * 0.5 / std::sqrt(3.0 * n));
  EXPECT_NEAR(std::sqrt(squares / n), 0.5 / std::sqrt(3.0), 1e-3);
  EXPECT_GE(*std::min_element(x.begin(), x.end()), 0.5f);
  EXPECT_LT(*std::max_element(x.begin(), x.end()), 1.5f);
}

// Padding of a decode step: a row of a sequence of length 0 between two real ones.
TEST(PagedAttention, LeavesRowsOfASequenceOfLengthZeroAlone) {
  for (const CpuIsa isa : ArmsOfThisMachine()) {
    OpTable table;
    RegisterCpuOps(table, isa);
    std::vector<float> k(2 * 4 * 8, 0.25f), v(2 * 4 * 8, 3.0f), q(3 * 8, 1.0f), out(3 * 8, -7.0f);
    const std::vector<int32_t> starts = {0, 1, 2, 3}, lengths = {2, 0, 3}, blocks = {1, 0, 1};
    PagedAttentionParams p;
    p.cache = {k.data(), v.data(), 2, 1, 4, 8};
    p.out = out.data();
    p.q = q.data();
    p.query_start = starts.data();
    p.seq_len = lengths.data();
    p.block_table = blocks.data();
    p.q_stride = 8;
    p.num_tokens = p.num_seqs = 3;
    p.max_blocks = 1;
    p.num_q_heads = 1;
    (*table.Resolve<PagedAttentionFn>({OpId::kPagedAttention, Device::kCpu, DType::kF32}))(p, {nullptr, 2});
    for (int i = 0; i < 8; ++i) {
      EXPECT_NEAR(out[i], 3.0f, 1e-5f) << CpuIsaName(isa);
      EXPECT_EQ(out[8 + i], -7.0f) << CpuIsaName(isa);
      EXPECT_NEAR(out[16 + i], 3.0f, 1e-5f) << CpuIsaName(isa);
    }
  }
}

}  // namespace
}  // namespace fastllm::ops
