// Rules of the prefix cache above the index: sequences that do not read, statistics, the query, pins.
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "core/kv/kv_manager.h"
#include "core/kv/pin_table.h"

namespace fastllm {
namespace {

using Tokens = std::vector<TokenId>;
using Blocks = std::vector<BlockId>;

Tokens Range(int32_t count, TokenId first = 100) {
  Tokens tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

class CachePolicy : public ::testing::Test {
 protected:
  static KvConfig Config(int32_t num_blocks) {
    KvConfig config;
    config.num_blocks = num_blocks;
    config.block_size = 2;
    return config;
  }

  int32_t AdmitAll(KvSlot slot, const Tokens& tokens, bool read_cache = true) {
    kv_.Open(slot, ExtraKeys{}, read_cache);
    const int32_t hit = kv_.FindPrefix(slot, tokens);
    EXPECT_TRUE(kv_.Admit(slot, tokens, hit, static_cast<int32_t>(tokens.size()) - hit));
    return hit;
  }
  // Computes the tokens once, so that their full blocks are cached and free.
  void Cache(const Tokens& tokens) {
    AdmitAll(9, tokens);
    kv_.Close(9);
  }
  int32_t Cached(const Tokens& tokens) const { return kv_.CountCachedTokens(tokens, {}); }
  int32_t Pin(const Tokens& tokens, int32_t priority, int64_t ttl_ms) {
    const Result<int32_t> pinned = kv_.PinPrefix(tokens, {}, priority, ttl_ms);
    EXPECT_TRUE(pinned.ok());
    return *pinned;
  }
  // Takes that many blocks with tokens of no other sequence, and gives them back uncached.
  void Churn(int32_t blocks) {
    for (int32_t i = 0; i < blocks; ++i) {
      kv_.Open(8, "");
      const Tokens one = {1};
      EXPECT_TRUE(kv_.Admit(8, one, 0, 1));
      kv_.Close(8);
    }
  }
  // Takes that many blocks at once and caches them.
  void Flood(int32_t blocks, TokenId first) {
    AdmitAll(8, Range(2 * blocks, first));
    kv_.Close(8);
  }

  int64_t now_ms_ = 1000;
  KvManager kv_{Config(12), [this] { return now_ms_; }};  // 11 blocks
};

TEST_F(CachePolicy, ASequenceThatMayNotReadWritesAllTheSame) {
  const Tokens tokens = Range(7);
  EXPECT_EQ(AdmitAll(0, tokens, false), 0);
  EXPECT_EQ(kv_.index()->num_cached_blocks(), 3);
  EXPECT_EQ(AdmitAll(1, tokens, false), 0);  // its own copies
  EXPECT_EQ(kv_.index()->num_cached_blocks(), 6);
  EXPECT_EQ(kv_.stats().requests, 0);
  EXPECT_EQ(kv_.stats().query_tokens, 0);
  EXPECT_EQ(AdmitAll(2, tokens), 6);
  EXPECT_EQ(kv_.stats().requests, 1);
}

TEST_F(CachePolicy, StatisticsCountAdmissionsNotLookUps) {
  const Tokens tokens = Range(7);
  AdmitAll(0, tokens);
  EXPECT_EQ(kv_.stats().requests, 1);
  EXPECT_EQ(kv_.stats().query_tokens, 7);
  EXPECT_EQ(kv_.stats().hit_tokens, 0);
  // Looked up again and again while it does not fit: 8 of 11 blocks are free and the hit is in use.
  const Tokens large = Range(25);
  kv_.Open(1, "");
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(kv_.FindPrefix(1, large), 6);
    EXPECT_FALSE(kv_.Admit(1, large, 6, 1));
  }
  EXPECT_EQ(kv_.stats().requests, 1);
  kv_.Close(1);
  AdmitAll(1, Range(9));
  EXPECT_EQ(kv_.stats().requests, 2);
  EXPECT_EQ(kv_.stats().query_tokens, 16);
  EXPECT_EQ(kv_.stats().hit_tokens, 6);
  // Preempted and admitted again: apart. The same slot opened anew: a new request.
  kv_.Free(1);
  ASSERT_EQ(kv_.FindPrefix(1, Range(10)), 8);
  ASSERT_TRUE(kv_.Admit(1, Range(10), 8, 2));
  EXPECT_EQ(kv_.stats().requests, 2);
  EXPECT_EQ(kv_.stats().preempted_requests, 1);
  EXPECT_EQ(kv_.stats().preempted_query_tokens, 10);
  EXPECT_EQ(kv_.stats().preempted_hit_tokens, 8);
  kv_.Close(1);
  AdmitAll(1, Range(3));
  EXPECT_EQ(kv_.stats().requests, 3);
  EXPECT_EQ(kv_.stats().query_tokens, 19);
  EXPECT_EQ(kv_.stats().hit_tokens, 8);
}

TEST_F(CachePolicy, SpareBlocksAreLeftOverAtAdmission) {
  const Tokens tokens = Range(12);  // 6 blocks of 11
  kv_.Open(0, "");
  EXPECT_FALSE(kv_.Admit(0, tokens, 0, 2, 6));
  EXPECT_TRUE(kv_.Admit(0, tokens, 0, 2, 5));
}

TEST_F(CachePolicy, TheQueryHasNoSideEffects) {
  Cache(Range(7));
  Cache(Range(5, 500));
  const Blocks free = kv_.pool().FreeBlocks();
  EXPECT_EQ(Cached(Range(20)), 6);
  EXPECT_EQ(Cached(Range(6)), 5);  // one token is left to compute
  EXPECT_EQ(Cached(Range(5, 500)), 4);
  EXPECT_EQ(Cached(Range(5, 501)), 0);
  EXPECT_EQ(Cached({}), 0);
  ExtraKeys salted;
  salted.cache_salt = "s";
  EXPECT_EQ(kv_.CountCachedTokens(Range(20), salted), 0);
  EXPECT_EQ(kv_.pool().FreeBlocks(), free);
  EXPECT_EQ(kv_.stats().requests, 2);
}

TEST_F(CachePolicy, PinnedBlocksAreTakenLast) {
  Cache(Range(7));       // blocks 1 2 3 cached, 4 free
  Cache(Range(5, 500));  // blocks 4 5 cached
  ASSERT_EQ(Pin(Range(7), 1, 0), 6);
  Flood(8, 900);  // every block that is not pinned
  EXPECT_EQ(Cached(Range(7)), 6);
  EXPECT_EQ(Cached(Range(5, 500)), 0);
  const Blocks free = kv_.pool().FreeBlocks();
  EXPECT_EQ(Blocks(free.end() - 3, free.end()), (Blocks{3, 2, 1}));
  // They are free all the same: usable when nothing else is left, tail first.
  EXPECT_EQ(kv_.pool().num_free_blocks(), 11);
  Flood(9, 2000);
  EXPECT_EQ(Cached(Range(7)), 4);
  Flood(11, 3000);
  EXPECT_EQ(Cached(Range(7)), 0);
  EXPECT_EQ(kv_.pool().level(1), 0);  // taken: the pin is over
}

TEST_F(CachePolicy, LowerPrioritiesGoFirst) {
  Cache(Range(5));       // 1 2
  Cache(Range(5, 500));  // 3 4
  Cache(Range(5, 700));  // 5 6
  Pin(Range(5), 7, 0);
  Pin(Range(5, 500), 2, 0);
  Pin(Range(5, 700), 40, 0);
  Flood(6, 900);
  EXPECT_EQ(Cached(Range(5, 500)), 2);
  Flood(8, 2000);
  EXPECT_EQ(Cached(Range(5, 500)), 0);
  EXPECT_EQ(Cached(Range(5)), 2);
  EXPECT_EQ(Cached(Range(5, 700)), 4);
}

TEST_F(CachePolicy, APinEndsAtItsDeadlineAndNotBefore) {
  Cache(Range(5));
  ASSERT_EQ(Pin(Range(5), 1, 50), 4);
  now_ms_ += 49;
  Flood(9, 900);
  EXPECT_EQ(Cached(Range(5)), 4);
  now_ms_ += 1;
  Flood(1, 3000);  // the time is looked at here: both blocks join the back of the normal ones
  EXPECT_EQ(kv_.pool().level(1), 0);
  EXPECT_EQ(kv_.pool().level(2), 0);
  Flood(11, 4000);
  EXPECT_EQ(Cached(Range(5)), 0);
}

TEST_F(CachePolicy, ALaterPinReplacesAnEarlierOne) {
  Cache(Range(5));
  Pin(Range(5), 3, 50);
  Pin(Range(5), 3, 500);
  now_ms_ += 100;
  Flood(9, 900);
  EXPECT_EQ(Cached(Range(5)), 4);
  Pin(Range(5), 0, 0);  // unpinned
  EXPECT_EQ(kv_.pool().level(1), 0);
  now_ms_ += 1000;
  Flood(11, 2000);
  EXPECT_EQ(Cached(Range(5)), 0);
}

TEST_F(CachePolicy, BlocksInUseArePinnedForTheTimeAfter) {
  const Tokens tokens = Range(5);
  AdmitAll(0, tokens);
  ASSERT_EQ(Pin(tokens, 1, 0), 4);
  EXPECT_EQ(kv_.pool().num_used_blocks(), 3);
  kv_.Close(0);
  Flood(9, 900);
  EXPECT_EQ(Cached(tokens), 4);
  EXPECT_EQ(AdmitAll(0, tokens), 4);  // hit, used and given back: still pinned
  kv_.Close(0);
  Flood(9, 2000);
  EXPECT_EQ(Cached(tokens), 4);
}

TEST_F(CachePolicy, OnlyWhatIsCachedIsPinned) {
  Cache(Range(5));
  EXPECT_EQ(Pin(Range(20), 1, 0), 4);
  EXPECT_EQ(Pin(Range(4), 1, 0), 4);
  EXPECT_EQ(Pin(Range(3), 1, 0), 2);
  EXPECT_EQ(Pin(Range(5, 101), 1, 0), 0);
}

TEST_F(CachePolicy, BadPinsAreRefused) {
  for (int32_t priority : {-1, 64}) {
    const Result<int32_t> result = kv_.PinPrefix(Range(5), {}, priority, 0);
    EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(result.status().message().find(std::to_string(priority)), std::string::npos);
  }
  EXPECT_NE(kv_.PinPrefix(Range(5), {}, 1, -5).status().message().find("-5 ms"), std::string::npos);
}

TEST_F(CachePolicy, ResetEndsPins) {
  Cache(Range(5));
  Pin(Range(5), 5, 10);
  ASSERT_TRUE(kv_.ResetPrefixCache());
  EXPECT_EQ(Cached(Range(5)), 0);
  EXPECT_EQ(kv_.pool().level(1), 0);
  EXPECT_EQ(kv_.pool().num_free_blocks(), 11);
  now_ms_ += 100;
  Churn(3);
  EXPECT_EQ(kv_.pool().num_free_blocks(), 11);
}

TEST_F(CachePolicy, WithoutCachingNothingIsFoundOrPinned) {
  KvConfig config = Config(12);
  config.enable_prefix_caching = false;
  KvManager kv(config, [this] { return now_ms_; });
  kv.Open(0, "");
  ASSERT_TRUE(kv.Admit(0, Range(5), kv.FindPrefix(0, Range(5)), 5));
  EXPECT_EQ(kv.CountCachedTokens(Range(5), {}), 0);
  EXPECT_EQ(*kv.PinPrefix(Range(5), {}, 1, 0), 0);
  EXPECT_EQ(kv.stats().requests, 0);
}

TEST(PinTable, EndsInOrderOfTheDeadlinesThatCount) {
  int64_t now = 100;
  PinTable pins(10, [&now] { return now; });
  EXPECT_FALSE(pins.MayExpire());
  pins.Set(1, 0);
  EXPECT_FALSE(pins.MayExpire());  // never ends
  pins.Set(2, 30);
  pins.Set(3, 20);
  pins.Set(4, 10);
  pins.Set(4, 40);
  pins.Set(5, 10);
  pins.Set(5, 0);
  pins.Set(6, INT64_MAX);
  Blocks ended;
  now = 119;
  pins.Expire(&ended);
  EXPECT_EQ(ended, Blocks{});
  now = 130;
  pins.Expire(&ended);
  EXPECT_EQ(ended, (Blocks{3, 2}));
  now = 140;
  pins.Expire(&ended);
  EXPECT_EQ(ended, (Blocks{3, 2, 4}));
  EXPECT_FALSE(pins.MayExpire());
}

}  // namespace
}  // namespace fastllm
