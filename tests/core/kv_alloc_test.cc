// The steady state of the KV cache takes no memory: decodes of known sequences, and sequences that follow one another.
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "alloc_counter.h"
#include "core/kv/kv_manager.h"

namespace fastllm {
namespace {

using Tokens = std::vector<TokenId>;

class KvAllocations : public ::testing::TestWithParam<int> {
 protected:
  static constexpr int32_t kSequences = 16;
  static constexpr int32_t kPrompt = 100;
  static constexpr int32_t kOutput = 400;

  static KvConfig Config() {
    KvConfig config;
    config.num_blocks = 2000;
    config.max_step_tokens = 200;
    config.kv_event_capacity = GetParam() == 2 ? 1000 : 0;
    config.enable_prefix_caching = GetParam() != 1;
    if (GetParam() == 3) {
      config.groups = {KvGroupSpec{}, KvGroupSpec{KvGroupKind::kSlidingWindow, 64},
                       KvGroupSpec{KvGroupKind::kState, 0, 32}};
    }
    return config;
  }

  KvAllocations() {
    for (int32_t i = 0; i < kSequences; ++i) {
      tokens_[i].resize(kPrompt + kOutput);
      std::iota(tokens_[i].begin(), tokens_[i].end(), 1000 * i);
    }
  }

  void Admit(int32_t i) {
    const auto prompt = std::span(tokens_[i]).first(kPrompt);
    const int32_t hit = kv_.FindPrefix(i, prompt);
    ASSERT_TRUE(kv_.Admit(i, prompt, hit, kPrompt - hit));
  }
  void Decode() {
    for (int32_t at = kPrompt; at < kPrompt + kOutput; ++at) {
      for (int32_t i = 0; i < kSequences; ++i) {
        ASSERT_TRUE(kv_.Extend(i, std::span(tokens_[i]).first(at + 1), at, 1, nullptr));
      }
    }
  }

  KvManager kv_{Config()};
  Tokens tokens_[kSequences];
};

TEST_P(KvAllocations, NoneWhileKnownSequencesDecode) {
  for (int32_t i = 0; i < kSequences; ++i) {
    kv_.Open(i, "");
    kv_.Reserve(i, kPrompt + kOutput);
    Admit(i);
  }
  const int32_t used = kv_.pool().num_used_blocks();
  AllocCounter counter;
  Decode();
  EXPECT_EQ(counter.count(), 0);
  EXPECT_NE(kv_.pool().num_used_blocks(), used);
}

TEST_P(KvAllocations, NoneForLaterSequencesInTheSameSlots) {
  for (int round = 0; round < 3; ++round) {  // the first hit is in the second
    AllocCounter counter;
    for (int32_t i = 0; i < kSequences; ++i) {
      kv_.Open(i, "");
      kv_.Reserve(i, kPrompt + kOutput);
      Admit(i);
    }
    Decode();
    for (int32_t i = 0; i < kSequences; ++i) kv_.Close(i);
    if (round < 2) continue;
    EXPECT_EQ(counter.count(), 0);
  }
}

TEST(AllocCounter, CountsEveryFormOfNew) {
  struct alignas(64) Wide {
    char bytes[64];
  };
  // Volatile, so that the compiler may not leave a pair of new and delete out.
  int* volatile single = nullptr;
  char* volatile array = nullptr;
  Wide* volatile wide = nullptr;
  AllocCounter counter;
  EXPECT_EQ(counter.count(), 0);
  single = new int(1);
  EXPECT_EQ(counter.count(), 1);
  array = new char[100];
  EXPECT_EQ(counter.count(), 2);
  wide = new Wide;
  EXPECT_EQ(counter.count(), 3);
  delete single;
  delete[] array;
  delete wide;
  EXPECT_EQ(counter.count(), 3);
}

// 0 plain, 1 without prefix caching, 2 with events, 3 hybrid.
INSTANTIATE_TEST_SUITE_P(Kinds, KvAllocations, ::testing::Range(0, 4));

}  // namespace
}  // namespace fastllm
