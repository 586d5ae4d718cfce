#include "core/kv/kv_manager.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "core/base/check.h"

namespace fastllm {
namespace {

using Tokens = std::vector<TokenId>;
using Blocks = std::vector<BlockId>;
using Tables = std::vector<Blocks>;

KvConfig Config(int32_t num_blocks, int32_t block_size, bool caching = true, int num_groups = 1) {
  KvConfig config;
  config.num_blocks = num_blocks;
  config.block_size = block_size;
  config.enable_prefix_caching = caching;
  config.groups.assign(num_groups, KvGroupSpec{});
  return config;
}

Tokens Range(int32_t count, TokenId first = 100) {
  Tokens tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// Opens the slot and admits all tokens at once; the hit.
int32_t AdmitAll(KvManager* kv, KvSlot slot, const Tokens& tokens, const std::string& salt = "") {
  kv->Open(slot, salt);
  const int32_t hit = kv->FindPrefix(slot, tokens);
  EXPECT_TRUE(kv->Admit(slot, tokens, hit, static_cast<int32_t>(tokens.size()) - hit));
  return hit;
}

TEST(KvConfig, BadValuesAreNamed) {
  EXPECT_EQ(CheckKvConfig(Config(2, 1)).code(), StatusCode::kOk);
  EXPECT_NE(CheckKvConfig(Config(1, 16)).message().find("num_blocks is 1"), std::string::npos);
  EXPECT_NE(CheckKvConfig(Config(5, 0)).message().find("block_size is 0"), std::string::npos);
  EXPECT_EQ(CheckKvConfig(Config(5, 16, true, 0)).code(), StatusCode::kInvalidArgument);
  KvConfig window = Config(5, 16);
  window.groups = {KvGroupSpec{}, KvGroupSpec{KvGroupKind::kSlidingWindow, 128},
                   KvGroupSpec{KvGroupKind::kState, 0, 64}};
  EXPECT_EQ(CheckKvConfig(window).code(), StatusCode::kOk);
  window.groups = {KvGroupSpec{KvGroupKind::kSlidingWindow}};
  EXPECT_NE(CheckKvConfig(window).message().find("sliding-window KV group is 0"), std::string::npos);
  EXPECT_THROW(KvManager{window}, InternalError);
  window.groups = {KvGroupSpec{KvGroupKind::kFull, 128}};
  EXPECT_NE(CheckKvConfig(window).message().find("window is 128"), std::string::npos);
  window.groups = {KvGroupSpec{KvGroupKind::kState, 7}};
  EXPECT_NE(CheckKvConfig(window).message().find("a state KV group has no window"), std::string::npos);
  window.groups = {KvGroupSpec{KvGroupKind::kFull, 0, 24}};
  EXPECT_NE(CheckKvConfig(window).message().find("block size of a KV group is 24"), std::string::npos);
  window = Config(5, 16);
  window.kv_event_capacity = -1;
  EXPECT_NE(CheckKvConfig(window).message().find("kv_event_capacity is -1"), std::string::npos);
  window = Config(5, 16);
  window.max_step_tokens = -1;
  EXPECT_NE(CheckKvConfig(window).message().find("max_step_tokens is -1"), std::string::npos);
}

TEST(KvManager, TableCoversTokensInWholeBlocks) {
  KvManager kv(Config(10, 4));
  const Tokens tokens = Range(9);
  kv.Open(0, "");
  ASSERT_EQ(kv.FindPrefix(0, tokens), 0);
  ASSERT_TRUE(kv.Admit(0, tokens, 0, 4));
  EXPECT_EQ(kv.Tables(0), (Tables{{1}}));
  EXPECT_EQ(kv.reserved_blocks(), 2);
  Tables added;
  ASSERT_TRUE(kv.Extend(0, tokens, 4, 5, &added));
  EXPECT_EQ(added, (Tables{{2, 3}}));
  EXPECT_EQ(kv.reserved_blocks(), 0);
  added.clear();
  Tokens more = Range(10);
  ASSERT_TRUE(kv.Extend(0, more, 9, 1, &added));
  EXPECT_TRUE(added.empty());
  kv.Close(0);
  EXPECT_EQ(kv.pool().num_used_blocks(), 0);
}

TEST(KvManager, HitIsTheLongestRunOfWholeBlocks) {
  KvManager kv(Config(20, 4));
  EXPECT_EQ(AdmitAll(&kv, 0, Range(11)), 0);  // blocks 1, 2 full; 3 partial
  Tokens longer = Range(14);
  EXPECT_EQ(AdmitAll(&kv, 1, longer), 8);
  EXPECT_EQ(kv.table(1, 0)[0], 1);
  EXPECT_EQ(kv.table(1, 0)[1], 2);
  EXPECT_EQ(kv.table(1, 0).size(), 4u);
  EXPECT_EQ(kv.pool().ref_count(1), 2);
  EXPECT_EQ(kv.pool().ref_count(3), 1);
  Tokens other = Range(14);
  other[5] = 7;
  EXPECT_EQ(AdmitAll(&kv, 2, other), 4);
}

// The last token is computed again beside the shared blocks; what follows it has a block of its own.
TEST(KvManager, AWholeHitLeavesOneTokenAndTakesNoBlock) {
  KvManager kv(Config(4, 4));  // 3 blocks
  const Tokens tokens = Range(8);
  AdmitAll(&kv, 0, tokens);
  EXPECT_EQ(kv.CountCachedTokens(tokens, {}), 7);
  for (KvSlot slot : {1, 2}) {
    kv.Open(slot, "");
    ASSERT_EQ(kv.FindPrefix(slot, tokens), 7);
    EXPECT_TRUE(kv.hit_is_whole());
    ASSERT_TRUE(kv.Admit(slot, tokens, 7, 1));
    EXPECT_FALSE(kv.hit_is_whole());
    EXPECT_EQ(kv.Tables(slot), (Tables{{1, 2}}));
  }
  EXPECT_EQ(kv.pool().ref_count(2), 3);
  EXPECT_EQ(kv.pool().num_free_blocks(), 1);
  EXPECT_EQ(kv.reserved_blocks(), 0);
  EXPECT_EQ(kv.stats().hit_tokens, 14);
  EXPECT_EQ(kv.index()->num_cached_blocks(), 2);
  Tables added;
  ASSERT_TRUE(kv.Extend(1, Range(9), 8, 1, &added));
  EXPECT_EQ(added, (Tables{{3}}));
  kv.Close(0);
  kv.Close(1);
  kv.Close(2);
  EXPECT_EQ(AdmitAll(&kv, 0, Range(9)), 8);
}

TEST(KvManager, AWholeHitIsOneOfAllTokens) {
  KvManager kv(Config(20, 4));
  AdmitAll(&kv, 0, Range(12));
  for (const auto& [count, hit] : std::vector<std::pair<int32_t, int32_t>>{{4, 3}, {7, 4}, {8, 7}, {9, 8}, {13, 12}}) {
    kv.Open(1, "");
    EXPECT_EQ(kv.FindPrefix(1, Range(count)), hit) << count;
    EXPECT_EQ(kv.hit_is_whole(), count % 4 == 0) << count;
    ASSERT_TRUE(kv.Admit(1, Range(count), 0, count));  // the hit may be passed over
    EXPECT_EQ(kv.Tables(1)[0][0] == 1, false) << count;
    kv.Close(1);
  }
  // Blocks of one token: the hit is as long as without the last block, so the lengths do not tell.
  KvManager one(Config(20, 1));
  AdmitAll(&one, 0, Range(3));
  one.Open(1, "");
  EXPECT_EQ(one.FindPrefix(1, Range(3)), 2);
  EXPECT_TRUE(one.hit_is_whole());
  EXPECT_EQ(one.FindPrefix(1, Range(4)), 3);
  EXPECT_FALSE(one.hit_is_whole());
  one.Open(2, "");
  EXPECT_EQ(one.FindPrefix(2, Range(1)), 0);  // nothing would be saved
  EXPECT_FALSE(one.hit_is_whole());
}

TEST(KvManager, FreedSequenceStaysCachedAndTailIsEvictedFirst) {
  KvManager kv(Config(5, 2));
  AdmitAll(&kv, 0, Range(8));  // blocks 1 2 3 4
  kv.Close(0);
  EXPECT_EQ(kv.pool().num_used_blocks(), 0);
  EXPECT_EQ(kv.pool().FreeBlocks(), (Blocks{4, 3, 2, 1}));
  AdmitAll(&kv, 0, Range(2, 900));  // evicts block 4
  kv.Close(0);
  kv.Open(1, "");
  EXPECT_EQ(kv.FindPrefix(1, Range(9)), 6);
}

TEST(KvManager, SaltSeparatesPrefixes) {
  KvManager kv(Config(30, 4));
  const Tokens tokens = Range(9);
  AdmitAll(&kv, 0, tokens, "a");
  EXPECT_EQ(AdmitAll(&kv, 1, tokens, "b"), 0);
  EXPECT_EQ(AdmitAll(&kv, 2, tokens, ""), 0);
  EXPECT_EQ(AdmitAll(&kv, 3, tokens, "a"), 8);
}

TEST(KvManager, OutputTokensAreIndexedOnceTheirBlockIsFull) {
  KvManager kv(Config(30, 4));
  Tokens tokens = Range(7);
  AdmitAll(&kv, 0, tokens);
  EXPECT_EQ(kv.index()->num_cached_blocks(), 1);
  tokens.push_back(1);
  ASSERT_TRUE(kv.Extend(0, tokens, 7, 1, nullptr));
  EXPECT_EQ(kv.index()->num_cached_blocks(), 2);
  tokens.push_back(2);
  kv.Open(1, "");
  EXPECT_EQ(kv.FindPrefix(1, tokens), 8);
}

TEST(KvManager, OnlyBlocksComputedByThisStepAreIndexed) {
  KvManager kv(Config(30, 4));
  const Tokens tokens = Range(20);
  kv.Open(0, "");
  kv.FindPrefix(0, tokens);
  ASSERT_TRUE(kv.Admit(0, tokens, 0, 11));
  EXPECT_EQ(kv.index()->num_cached_blocks(), 2);
  kv.Open(1, "");
  EXPECT_EQ(kv.FindPrefix(1, tokens), 8);
}

TEST(KvManager, WholePromptMustFitAtAdmission) {
  KvManager kv(Config(6, 4));       // 5 blocks
  const Tokens tokens = Range(21);  // 6 blocks
  kv.Open(0, "");
  EXPECT_FALSE(kv.Admit(0, tokens, kv.FindPrefix(0, tokens), 4));
  EXPECT_EQ(kv.pool().FreeBlocks(), (Blocks{1, 2, 3, 4, 5}));
  EXPECT_EQ(kv.index()->num_cached_blocks(), 0);
  EXPECT_TRUE(kv.table(0, 0).empty());
  kv.Close(0);
  // A half-computed prompt keeps the rest of its blocks set aside: 3 of 5 are spoken for.
  const Tokens three = Range(12);
  kv.Open(0, "");
  ASSERT_TRUE(kv.Admit(0, three, kv.FindPrefix(0, three), 4));
  EXPECT_EQ(kv.pool().num_free_blocks(), 4);
  const Tokens large = Range(12, 500), small = Range(8, 500);
  kv.Open(1, "");
  EXPECT_FALSE(kv.Admit(1, large, kv.FindPrefix(1, large), 1));
  kv.Close(1);
  kv.Open(1, "");
  EXPECT_TRUE(kv.Admit(1, small, kv.FindPrefix(1, small), 8));
  EXPECT_TRUE(kv.Extend(0, three, 4, 8, nullptr));
  EXPECT_EQ(kv.pool().num_free_blocks(), 0);
}

TEST(KvManager, FreeBlocksOfTheHitCountAsNeeded) {
  KvManager kv(Config(5, 2));  // 4 blocks
  AdmitAll(&kv, 0, Range(4));
  kv.Close(0);                      // 2 free cached blocks
  AdmitAll(&kv, 1, Range(2, 700));  // 1 of the others in use: 3 free, 2 of them cached
  kv.Open(0, "");
  const Tokens tokens = Range(8);  // 2 hits + 2 new = all 4
  const int32_t hit = kv.FindPrefix(0, tokens);
  EXPECT_EQ(hit, 4);
  EXPECT_FALSE(kv.Admit(0, tokens, hit, 4));
  EXPECT_EQ(kv.pool().num_free_blocks(), 3);
  EXPECT_EQ(kv.index()->num_cached_blocks(), 3);
  kv.Close(1);
  EXPECT_TRUE(kv.Admit(0, tokens, kv.FindPrefix(0, tokens), 4));
  EXPECT_EQ(kv.pool().num_free_blocks(), 0);
}

TEST(KvManager, FailedExtendChangesNothing) {
  KvManager kv(Config(3, 2));
  Tokens tokens = Range(4);
  AdmitAll(&kv, 0, tokens);
  tokens.push_back(1);
  Tables added;
  EXPECT_FALSE(kv.Extend(0, tokens, 4, 1, &added));
  EXPECT_TRUE(added.empty());
  EXPECT_EQ(kv.table(0, 0).size(), 2u);
}

TEST(KvManager, AStaleHitIsRefused) {
  KvManager kv(Config(10, 2));
  AdmitAll(&kv, 0, Range(5));
  kv.Open(1, "");
  const Tokens tokens = Range(5);
  ASSERT_EQ(kv.FindPrefix(1, tokens), 4);
  kv.Close(0);
  EXPECT_THROW(kv.Admit(1, tokens, 4, 1), InternalError);
}

TEST(KvManager, ASlotInUseIsNotOpenedAgain) {
  KvManager kv(Config(10, 2));
  AdmitAll(&kv, 0, Range(5));
  EXPECT_THROW(kv.Open(0, ""), InternalError);
}

TEST(KvManager, CachingOffNeverHits) {
  KvManager kv(Config(10, 2, false));
  EXPECT_EQ(AdmitAll(&kv, 0, Range(5)), 0);
  EXPECT_EQ(AdmitAll(&kv, 1, Range(5)), 0);
  EXPECT_EQ(kv.index(), nullptr);
  kv.Close(0);
  kv.Close(1);
  EXPECT_TRUE(kv.ResetPrefixCache());
}

TEST(KvManager, ResetForgetsPrefixesWhenNothingIsHeld) {
  KvManager kv(Config(10, 2));
  AdmitAll(&kv, 0, Range(5));
  EXPECT_FALSE(kv.ResetPrefixCache());
  kv.Close(0);
  EXPECT_TRUE(kv.ResetPrefixCache());
  EXPECT_EQ(AdmitAll(&kv, 0, Range(5)), 0);
}

TEST(KvManager, TwoGroupsGetBlocksTogetherOrNotAtAll) {
  KvManager kv(Config(8, 2, true, 2));  // 7 blocks: 3 per group
  EXPECT_EQ(kv.capacity_tokens(), 6);
  Tokens tokens = Range(5);
  EXPECT_EQ(AdmitAll(&kv, 0, tokens), 0);
  EXPECT_EQ(kv.Tables(0), (Tables{{1, 2, 3}, {4, 5, 6}}));
  tokens = Range(7);
  Tables added;
  EXPECT_FALSE(kv.Extend(0, tokens, 5, 2, &added));
  EXPECT_EQ(kv.Tables(0), (Tables{{1, 2, 3}, {4, 5, 6}}));
  kv.Close(0);
  EXPECT_EQ(AdmitAll(&kv, 1, Range(5)), 4);
  EXPECT_EQ(kv.table(1, 0)[0], 1);
  EXPECT_EQ(kv.table(1, 1)[0], 4);
  EXPECT_EQ(kv.pool().num_used_blocks(), 6);
  // One group loses its copy of the second block: both groups agree on a hit of one block.
  kv.Close(1);
  EXPECT_EQ(kv.pool().FreeBlocks(), (Blocks{3, 6, 7, 2, 1, 5, 4}));
  EXPECT_EQ(AdmitAll(&kv, 0, Range(4, 900)), 0);  // takes 3, 6, 7 and 2
  kv.Open(1, "");
  EXPECT_EQ(kv.FindPrefix(1, Range(5)), 2);
}

}  // namespace
}  // namespace fastllm
