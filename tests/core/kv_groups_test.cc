#include <gtest/gtest.h>

#include <limits>
#include <numeric>
#include <vector>

#include "core/kv/coordinator.h"
#include "core/kv/kv_manager.h"

namespace fastllm {
namespace {

using Tokens = std::vector<TokenId>;
using Blocks = std::vector<BlockId>;
using Tables = std::vector<Blocks>;

constexpr int32_t kNone = kNullBlock;

KvGroupSpec Full(int32_t block_size = 0) { return {KvGroupKind::kFull, 0, block_size}; }
KvGroupSpec Window(int32_t window, int32_t block_size = 0) { return {KvGroupKind::kSlidingWindow, window, block_size}; }
KvGroupSpec State(int32_t block_size = 0) { return {KvGroupKind::kState, 0, block_size}; }

KvConfig Config(int32_t num_blocks, int32_t block_size, std::vector<KvGroupSpec> groups, int32_t max_step = 0) {
  KvConfig config;
  config.num_blocks = num_blocks;
  config.block_size = block_size;
  config.groups = std::move(groups);
  config.max_step_tokens = max_step;
  return config;
}

Tokens Range(int32_t count, TokenId first = 100) {
  Tokens tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

int32_t AdmitAll(KvManager* kv, KvSlot slot, const Tokens& tokens) {
  kv->Open(slot, "");
  const int32_t hit = kv->FindPrefix(slot, tokens);
  EXPECT_TRUE(kv->Admit(slot, tokens, hit, static_cast<int32_t>(tokens.size()) - hit));
  return hit;
}

TEST(KvNeed, FirstNeededIsTheBlockOfTheFirstTokenThatIsStillRead) {
  EXPECT_EQ(MakeKvNeed(Full(), 4, 0)->FirstNeeded(1000), 0);
  const auto window = MakeKvNeed(Window(5), 4, 0);  // token t reads t-4 .. t
  const std::vector<std::pair<int32_t, int32_t>> expected = {{0, 0},  {4, 0},  {7, 0},   {8, 1},
                                                             {11, 1}, {12, 2}, {100, 24}};
  for (const auto& [settled, first] : expected) EXPECT_EQ(window->FirstNeeded(settled), first) << settled;
  const auto state = MakeKvNeed(State(), 4, 0);
  for (const auto& [settled, first] :
       std::vector<std::pair<int32_t, int32_t>>{{0, 0}, {1, 0}, {4, 0}, {5, 1}, {8, 1}}) {
    EXPECT_EQ(state->FirstNeeded(settled), first) << settled;
  }
}

TEST(KvNeed, EntriesForHitCoverTheWindowLessItsOwnToken) {
  EXPECT_EQ(MakeKvNeed(Full(), 4, 0)->EntriesForHit(), KvNeed::kAll);
  EXPECT_EQ(MakeKvNeed(State(), 4, 0)->EntriesForHit(), 1);
  for (const auto& [size, entries] : std::vector<std::pair<int32_t, int32_t>>{{1, 0}, {2, 1}, {5, 1}, {6, 2}, {9, 2}}) {
    EXPECT_EQ(MakeKvNeed(Window(size), 4, 0)->EntriesForHit(), entries) << "window " << size;
  }
}

TEST(KvNeed, PeakIsBoundedByWindowAndStep) {
  EXPECT_EQ(MakeKvNeed(Full(), 4, 8)->PeakBlocks(101), 26);
  // 4 tokens before the first that is not final and 8 from there on: 12 tokens touch 4 blocks of 4 at most.
  EXPECT_EQ(MakeKvNeed(Window(5), 4, 8)->PeakBlocks(101), 4);
  EXPECT_EQ(MakeKvNeed(Window(5), 4, 8)->PeakBlocks(9), 3);
  EXPECT_EQ(MakeKvNeed(Window(5), 4, 0)->PeakBlocks(101), 26);
  EXPECT_EQ(MakeKvNeed(State(), 4, 8)->PeakBlocks(101), 5);
  EXPECT_EQ(MakeKvNeed(State(), 4, 8)->PeakBlocks(4), 1);
}

TEST(SlidingWindow, BlocksBehindTheWindowBecomeNullAndStayCached) {
  KvManager kv(Config(20, 2, {Window(4)}));
  Tokens tokens = Range(12);
  AdmitAll(&kv, 0, tokens);
  EXPECT_EQ(kv.Tables(0), (Tables{{1, 2, 3, 4, 5, 6}}));  // one step: all are written in it
  tokens = Range(13);
  Tables added;
  ASSERT_TRUE(kv.Extend(0, tokens, 12, 1, &added));  // token 12 reads 9 .. 12
  EXPECT_EQ(kv.Tables(0), (Tables{{kNone, kNone, kNone, kNone, 5, 6, 7}}));
  EXPECT_EQ(added, (Tables{{7}}));
  EXPECT_EQ(kv.pool().num_used_blocks(), 3);
  EXPECT_EQ(kv.index()->num_cached_blocks(), 6);
  const Blocks free = kv.pool().FreeBlocks();
  EXPECT_EQ(Blocks(free.end() - 4, free.end()), (Blocks{4, 3, 2, 1}));  // cached ones last, tail first
  kv.Close(0);
  EXPECT_EQ(kv.pool().num_used_blocks(), 0);
}

TEST(SlidingWindow, AHitNeedsTheLastWindowOnly) {
  KvManager kv(Config(14, 2, {Window(4)}));  // 13 blocks
  AdmitAll(&kv, 0, Range(12));
  ASSERT_TRUE(kv.Extend(0, Range(13), 12, 1, nullptr));
  // Of 10 free blocks the last four are the window's old ones: take all, so that they leave the cache.
  const Tokens other = Range(20, 900);
  AdmitAll(&kv, 1, other);
  EXPECT_EQ(kv.pool().num_free_blocks(), 0);
  kv.Close(1);
  EXPECT_EQ(AdmitAll(&kv, 2, Range(14)), 12);
  EXPECT_EQ(kv.table(2, 0).size(), 7u);
  EXPECT_EQ(Blocks(kv.table(2, 0).begin(), kv.table(2, 0).begin() + 6), (Blocks{kNone, kNone, kNone, kNone, 5, 6}));
  EXPECT_EQ(kv.pool().ref_count(5), 2);
  // Ten of the tokens end in block 5, whose window begins in an evicted block.
  Tokens shorter = Range(10);
  shorter.push_back(1);
  kv.Open(3, "");
  EXPECT_EQ(kv.FindPrefix(3, shorter), 0);
}

TEST(SlidingWindow, StepsInFlightKeepWhatTheyRead) {
  KvManager kv(Config(30, 2, {Window(4)}));
  AdmitAll(&kv, 0, Range(12));
  // The step of tokens 9 .. 11 still runs; its first token reads 6 .. 9.
  ASSERT_TRUE(kv.Extend(0, Range(13), 12, 1, nullptr, 3));
  EXPECT_EQ(kv.Tables(0), (Tables{{kNone, kNone, kNone, 4, 5, 6, 7}}));
  ASSERT_TRUE(kv.Extend(0, Range(15), 13, 2, nullptr, 1));  // token 12 runs; it reads 9 .. 12
  EXPECT_EQ(kv.Tables(0), (Tables{{kNone, kNone, kNone, kNone, 5, 6, 7, 8}}));
}

TEST(SlidingWindow, FreedBlocksServeTheSameGrowth) {
  KvManager kv(Config(5, 2, {Window(2)}));  // 4 blocks; token t reads t-1 and t
  AdmitAll(&kv, 0, Range(8));
  EXPECT_EQ(kv.pool().num_free_blocks(), 0);
  ASSERT_TRUE(kv.Extend(0, Range(9), 8, 1, nullptr));  // reads 7, 8: blocks 1, 2 and 3 go back, 3 is the oldest
  EXPECT_EQ(kv.Tables(0), (Tables{{kNone, kNone, kNone, 4, 3}}));
}

TEST(SlidingWindow, AdmissionSetsThePeakAsideNotTheWholePrompt) {
  KvManager kv(Config(7, 2, {Window(4)}, 4));  // 6 blocks; peak 5
  EXPECT_EQ(kv.capacity_tokens(), std::numeric_limits<int32_t>::max());
  const Tokens tokens = Range(40);
  kv.Open(0, "");
  ASSERT_TRUE(kv.Admit(0, tokens, kv.FindPrefix(0, tokens), 4));
  EXPECT_EQ(kv.reserved_blocks(), 3);
  for (int32_t at = 4; at < 40; at += 4) {
    ASSERT_TRUE(kv.Extend(0, tokens, at, 4, nullptr)) << at;
    EXPECT_LE(kv.pool().num_used_blocks(), 5);
    EXPECT_EQ(kv.pool().num_used_blocks() + kv.reserved_blocks(), at + 4 < 40 ? 5 : kv.pool().num_used_blocks());
  }
  EXPECT_EQ(kv.reserved_blocks(), 0);
  EXPECT_EQ(KvManager(Config(5, 2, {Window(4)}, 4)).capacity_tokens(), 8);            // 4 blocks are less than the peak
  EXPECT_EQ(KvManager(Config(12, 2, {Full(), Window(4)}, 4)).capacity_tokens(), 12);  // 6 + 5 of 11
}

// A coordinator over an index that the test fills: blocks[group][unit].
class HybridHit : public ::testing::Test {
 protected:
  void Fill(const KvConfig& config, const Tables& blocks) {
    index_ = std::make_unique<PrefixIndex>(config.num_blocks, config.block_size, config.groups.size());
    pool_ = std::make_unique<BlockPool>(config.num_blocks, index_.get());
    coordinator_ = std::make_unique<KvCoordinator>(config, pool_.get(), index_.get());
    PrefixNode node = kRootNode;
    for (size_t unit = 0; unit < blocks[0].size(); ++unit) {
      Blocks row;
      for (const Blocks& group : blocks) row.push_back(group[unit]);
      const Tokens tokens(config.block_size, static_cast<TokenId>(unit));
      node = index_->Insert(node, HashBlock(kChainSeed, tokens, ""), tokens, "", row);
      nodes_.push_back(node);
    }
  }

  std::unique_ptr<PrefixIndex> index_;
  std::unique_ptr<BlockPool> pool_;
  std::unique_ptr<KvCoordinator> coordinator_;
  std::vector<PrefixNode> nodes_;
};

TEST_F(HybridHit, GroupsAgreeOnTheLongestCommonHit) {
  // The window needs two cached blocks before the boundary. Full alone: 5. Window alone: 6. Window within 5: 3.
  Fill(Config(30, 2, {Full(), Window(5)}), {{1, 2, 3, 4, 5, 0}, {0, 11, 12, 0, 14, 15}});
  EXPECT_EQ(coordinator_->HitLength(nodes_), 3);
  coordinator_->SetNumSlots(1);
  const auto hit = std::span(nodes_).first(3);
  EXPECT_EQ(coordinator_->BlocksInHit(hit, 6), 5);
  EXPECT_EQ(coordinator_->FreeBlocksInHit(hit, 6), 5);
  coordinator_->AttachHit(0, hit, 6);
  EXPECT_EQ(coordinator_->table(0, 0), (Blocks{1, 2, 3}));
  EXPECT_EQ(coordinator_->table(1, 0), (Blocks{kNone, 11, 12}));
  EXPECT_EQ(pool_->num_used_blocks(), 5);
}

TEST_F(HybridHit, OneGroupsCutMakesAnotherAskAgain) {
  // Full: 6. First window: 6, second: 5. First within 5: 2, second within 2: 2.
  Fill(Config(40, 2, {Full(), Window(5), Window(3)}),
       {{1, 2, 3, 4, 5, 6}, {11, 12, 0, 0, 15, 16}, {0, 22, 0, 24, 25, 0}});
  EXPECT_EQ(coordinator_->HitLength(nodes_), 2);
}

TEST_F(HybridHit, LengthIsAMultipleOfEveryBlockSize) {
  // Blocks of 2, 4 and 6 tokens: common boundaries are at 12 tokens (6 units).
  const Tables blocks = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12},
                         {0, 21, 0, 22, 0, 23, 0, 24, 0, 25, 0, 26},
                         {0, 0, 31, 0, 0, 32, 0, 0, 33, 0, 0, 34}};
  Fill(Config(40, 2, {Full(), Full(4), State(6)}), blocks);
  EXPECT_EQ(coordinator_->HitLength(nodes_), 12);
  EXPECT_EQ(coordinator_->HitLength(std::span(nodes_).first(11)), 6);
  EXPECT_EQ(coordinator_->HitLength(std::span(nodes_).first(5)), 0);
  coordinator_->SetNumSlots(1);
  coordinator_->AttachHit(0, std::span(nodes_).first(6), 12);
  EXPECT_EQ(coordinator_->table(0, 0), (Blocks{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(coordinator_->table(1, 0), (Blocks{21, 22, 23}));
  EXPECT_EQ(coordinator_->table(2, 0), (Blocks{kNone, 32}));
}

TEST_F(HybridHit, TheLastTokenIsRepeatedWhereItsWholeWindowIsCached) {
  // The window of 5 before token 6 is two blocks; that of the token before it, which reads 1 .. 5, is three.
  Fill(Config(30, 2, {Full(), Window(5)}), {{1, 2, 3, 4, 5, 6}, {0, 11, 12, 13, 0, 15}});
  const auto first = [this](int32_t units) { return std::span(nodes_).first(units); };
  EXPECT_EQ(coordinator_->HitLength(first(3)), 3);
  EXPECT_FALSE(coordinator_->CanRepeatLast(first(3)));
  ASSERT_TRUE(coordinator_->CanRepeatLast(first(4)));
  EXPECT_FALSE(coordinator_->CanRepeatLast(first(5)));  // the window's own block is not there
  EXPECT_FALSE(coordinator_->CanRepeatLast(first(6)));
  coordinator_->SetNumSlots(1);
  EXPECT_EQ(coordinator_->BlocksInHit(first(4), 8), 6);
  EXPECT_EQ(coordinator_->BlocksInHit(first(4), 7), 7);
  EXPECT_EQ(coordinator_->FreeBlocksInHit(first(4), 7), 7);
  coordinator_->AttachHit(0, first(4), 7);
  EXPECT_EQ(coordinator_->table(1, 0), (Blocks{kNone, 11, 12, 13}));
}

TEST_F(HybridHit, NoTokenIsRepeatedInsideALargerBlock) {
  Fill(Config(40, 2, {Full(), Full(4)}), {{1, 2, 3, 4}, {0, 21, 0, 22}});
  EXPECT_TRUE(coordinator_->CanRepeatLast(std::span(nodes_).first(4)));
  EXPECT_FALSE(coordinator_->CanRepeatLast(std::span(nodes_).first(3)));
}

TEST_F(HybridHit, StatesAreNotTakenBack) {
  Fill(Config(30, 2, {Full(), State()}), {{1, 2, 3}, {11, 12, 13}});
  EXPECT_EQ(coordinator_->HitLength(nodes_), 3);
  EXPECT_FALSE(coordinator_->CanRepeatLast(nodes_));
}

TEST_F(HybridHit, AStateGroupHitsAtCheckpointsOnly) {
  Fill(Config(30, 2, {Full(), State()}), {{1, 2, 3, 4, 5}, {0, 0, 13, 0, 0}});
  EXPECT_EQ(coordinator_->HitLength(nodes_), 3);
  EXPECT_EQ(coordinator_->HitLength(std::span(nodes_).first(2)), 0);
}

TEST(StateGroup, AStepKeepsItsLastBoundaryAndItsLastState) {
  KvManager kv(Config(20, 4, {State()}));
  AdmitAll(&kv, 0, Range(10));  // boundaries at 4 and 8: the checkpoint at 8, the state after 10
  EXPECT_EQ(kv.Tables(0), (Tables{{kNone, 1, 2}}));
  EXPECT_EQ(kv.index()->num_cached_blocks(), 1);
  EXPECT_EQ(kv.index()->num_nodes(), 2);
  ASSERT_TRUE(kv.Extend(0, Range(12), 10, 2, nullptr));  // state 2 becomes the checkpoint at 12
  EXPECT_EQ(kv.Tables(0), (Tables{{kNone, 1, 2}}));
  EXPECT_EQ(kv.index()->num_cached_blocks(), 2);
  Tables added;
  ASSERT_TRUE(kv.Extend(0, Range(30), 12, 18, &added));  // starts from 2; boundary at 28, last state after 30
  EXPECT_EQ(kv.Tables(0), (Tables{{kNone, kNone, 2, kNone, kNone, kNone, 3, 4}}));
  EXPECT_EQ(added, (Tables{{kNone, kNone, kNone, 3, 4}}));
  EXPECT_EQ(kv.pool().num_used_blocks(), 3);
  // The checkpoints at 8, 12 and 28 can be hit.
  kv.Open(1, "");
  EXPECT_EQ(kv.FindPrefix(1, Range(29)), 28);
  EXPECT_EQ(kv.CountCachedTokens(Range(28), {}), 12);
  EXPECT_EQ(kv.CountCachedTokens(Range(12), {}), 8);
  EXPECT_EQ(kv.CountCachedTokens(Range(8), {}), 0);
  ASSERT_TRUE(kv.Admit(1, Range(29), 28, 1));
  EXPECT_EQ(kv.Tables(1), (Tables{{kNone, kNone, kNone, kNone, kNone, kNone, 3, 5}}));
  EXPECT_EQ(kv.pool().ref_count(3), 2);
}

TEST(StateGroup, FitsBesideFullGroupsUnderOneManager) {
  KvManager kv(Config(40, 4, {Full(), State(8)}));
  Tokens tokens = Range(21);
  AdmitAll(&kv, 0, tokens);
  EXPECT_EQ(kv.Tables(0), (Tables{{1, 2, 3, 4, 5, 6}, {kNone, 7, 8}}));
  kv.Close(0);
  EXPECT_EQ(AdmitAll(&kv, 0, tokens), 16);
  EXPECT_EQ(kv.table(0, 0)[3], 4);
  EXPECT_EQ(kv.table(0, 1)[1], 7);
}

TEST(Groups, CachingOffFreesWindowsAllTheSame) {
  KvConfig config = Config(20, 2, {Full(), Window(4)});
  config.enable_prefix_caching = false;
  KvManager kv(config);
  AdmitAll(&kv, 0, Range(8));
  ASSERT_TRUE(kv.Extend(0, Range(9), 8, 1, nullptr));
  EXPECT_EQ(kv.table(0, 0), (Blocks{1, 2, 3, 4, 5}));
  EXPECT_EQ(kv.table(0, 1), (Blocks{kNone, kNone, 7, 8, 6}));  // reads 5 .. 8; 5 and 6 went back to the front
}

}  // namespace
}  // namespace fastllm
