// Variants of paged_attention: sliding window, soft-capped logits.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "attention_support.h"
#include "ops/contract/attention.h"
#include "support.h"

namespace fastllm::ops {
namespace {

class AttentionVariants : public ArmTest {
 protected:
  PagedAttentionFn Fn() const {
    return Get<PagedAttentionFn>(OpId::kPagedAttention, kFeatureGqa | kFeatureSlidingWindow | kFeatureSoftcap);
  }
};

std::vector<int> Ids(size_t n) {
  std::vector<int> ids(n);
  std::iota(ids.begin(), ids.end(), 1);
  return ids;
}

// Windows at and around the borders of blocks, chunks (64) and splits (256); blocks outside are not there to be read.
TEST_P(AttentionVariants, WindowMatchesFloat64AndReadsNoBlockOutside) {
  const std::vector<Seq> mixes[] = {
      {{1, 1}}, {{300, 1}}, {{140, 140}}, {{700, 90}, {1, 1}, {65, 1}, {64, 64}, {129, 2}, {5, 0}, {20, 19}, {600, 1}}};
  for (const Shape s : {Shape{2, 1, 24, 8}, {9, 3, 64, 16}, {14, 2, 80, 16}, {4, 4, 33, 32}, {71, 1, 16, 16}}) {
    for (const int window : {1, 2, 16, 63, 64, 65, 127, 128, 255, 256, 257, 1000}) {
      for (const auto& mix : mixes) {
        Batch b(s, mix, Ids(mix.size()), 5);
        b.window = window;
        b.DropUnseenBlocks();
        Fn()(b.Params(), {nullptr, 3});
        EXPECT_LT(MaxError(b.out, b.Reference()), 4e-6) << s.q_heads << "/" << s.kv_heads << " dim " << s.head_dim
                                                        << " window " << window << " seqs " << mix.size();
      }
    }
  }
}

TEST_P(AttentionVariants, SoftcapMatchesFloat64) {
  for (const Shape s : {Shape{9, 3, 64, 16}, {8, 4, 256, 16}, {3, 1, 40, 8}}) {
    for (const float cap : {0.5f, 5.0f, 50.0f}) {
      for (const int window : {0, 70}) {
        Batch b(s, {{70, 33}, {1, 1}, {65, 1}, {400, 2}}, {1, 2, 3, 4}, 5);
        for (float& x : b.q) x *= 10.0f;  // scores to about 40, where the cap bends them
        b.softcap = cap;
        b.window = window;
        Fn()(b.Params(), {nullptr, 2});
        EXPECT_LT(MaxError(b.out, b.Reference()), 2e-5) << "dim " << s.head_dim << " cap " << cap;  // of scores near 50
      }
    }
  }
}

TEST_P(AttentionVariants, LargeScoresReachTheCapAndNoFurther) {
  Batch b({3, 1, 64, 16}, {{200, 3}}, {4}, 1);
  for (float& x : b.q) x *= 1e20f;
  b.softcap = 30.0f;
  Fn()(b.Params(), {});
  EXPECT_LT(MaxError(b.out, b.Reference()), 1e-5);
}

TEST_P(AttentionVariants, AWindowAsLongAsTheSequenceChangesNoBit) {
  for (const int threads : {1, 4}) {
    Batch plain({9, 3, 64, 16}, {{530, 530}, {300, 1}}, {7, 8}, 3), windowed = plain;
    Fn()(plain.Params(), {nullptr, threads});
    windowed.window = 530;
    Fn()(windowed.Params(), {nullptr, threads});
    EXPECT_EQ(plain.out, windowed.out);
  }
}

// A prompt in chunks, alone or among mates, on any number of threads: the same bits.
TEST_P(AttentionVariants, BitsDoNotDependOnChunkingMatesOrThreads) {
  const Shape s{6, 2, 64, 16};
  constexpr int kLen = 600;
  const size_t row = static_cast<size_t>(s.q_heads) * s.head_dim;
  for (const int window : {33, 64, 200, 300}) {
    Batch whole(s, {{kLen, kLen}}, {7}, 3);
    whole.window = window;
    whole.softcap = 20.0f;
    Fn()(whole.Params(), {nullptr, 1});
    for (const int chunk : {64, 77, 257, 599}) {
      for (int done = 0; done < kLen; done += chunk) {
        const int n = std::min(chunk, kLen - done);
        Batch b(s, {{33, 7}, {done + n, n}, {90, 1}}, {50, 7, 51}, done + 1);
        b.window = window;
        b.softcap = 20.0f;
        b.DropUnseenBlocks();
        Fn()(b.Params(), {nullptr, 1 + chunk % 3});
        ASSERT_EQ(std::memcmp(b.out.data() + 7 * row, whole.out.data() + done * row, n * row * sizeof(float)), 0)
            << "window " << window << " chunk " << chunk << " at " << done;
      }
    }
    for (const int at : {1, 63, 64, 65, 257, 300, 513, 600}) {  // decode rows, whose splits run side by side
      Batch b(s, {{at, 1}}, {7}, at);
      b.window = window;
      b.softcap = 20.0f;
      Fn()(b.Params(), {nullptr, 8});
      ASSERT_EQ(std::memcmp(b.out.data(), whole.out.data() + (at - 1) * row, row * sizeof(float)), 0) << at;
    }
  }
}

// A cache of 16 bits: each position counts as the rounded values do.
TEST_P(AttentionVariants, WindowAndSoftcapOverANarrowCache) {
  const double bound = GetParam() >= CpuIsa::kAvx512Bf16 ? 3e-2 : 1e-5;
  for (const int window : {0, 17, 64, 130}) {
    Batch b({8, 2, 64, 16}, {{400, 70}, {333, 1}, {20, 20}}, {1, 2, 3}, 5);
    std::vector<uint16_t> narrow[2];
    for (auto* from : {&b.k, &b.v}) {
      for (float& x : *from) {
        uint32_t bits;
        std::memcpy(&bits, &x, 4);
        bits &= 0xFFFF0000u;
        std::memcpy(&x, &bits, 4);
        narrow[from == &b.v].push_back(static_cast<uint16_t>(bits >> 16));
      }
    }
    b.window = window;
    b.softcap = 15.0f;
    if (window > 0) b.DropUnseenBlocks();
    PagedAttentionParams p = b.Params();
    p.cache.k = narrow[0].data();
    p.cache.v = narrow[1].data();
    p.cache.dtype = DType::kBF16;
    Fn()(p, {nullptr, 3});
    EXPECT_LT(MaxError(b.out, b.Reference()), bound) << "window " << window;
  }
}

FASTLLM_INSTANTIATE_ARMS(AttentionVariants);

}  // namespace
}  // namespace fastllm::ops
