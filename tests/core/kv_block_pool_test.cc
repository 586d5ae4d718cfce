#include "core/kv/block_pool.h"

#include <gtest/gtest.h>

#include <vector>

#include "core/base/check.h"
#include "core/kv/prefix_index.h"

namespace fastllm {
namespace {

using Blocks = std::vector<BlockId>;

Blocks Take(BlockPool* pool, int32_t count) {
  Blocks out;
  EXPECT_TRUE(pool->Allocate(count, &out));
  return out;
}

// Puts a block of block size 1 into the index under the root.
void Index(PrefixIndex* index, BlockId block, TokenId token) {
  const Blocks tokens = {token};
  const Blocks blocks = {block};
  index->Insert(kRootNode, HashBlock(kChainSeed, tokens, ""), tokens, "", blocks);
}

TEST(BlockPool, StartsWithAllButTheNullBlockFreeInOrder) {
  BlockPool pool(5, nullptr);
  EXPECT_EQ(pool.num_blocks(), 5);
  EXPECT_EQ(pool.num_free_blocks(), 4);
  EXPECT_EQ(pool.num_used_blocks(), 0);
  EXPECT_EQ(pool.FreeBlocks(), (Blocks{1, 2, 3, 4}));
  EXPECT_EQ(Take(&pool, 4), (Blocks{1, 2, 3, 4}));
  EXPECT_EQ(pool.num_used_blocks(), 4);
}

TEST(BlockPool, RefusesASizeWithoutARealBlock) { EXPECT_THROW(BlockPool(1, nullptr), InternalError); }

TEST(BlockPool, FailedAllocationChangesNothing) {
  BlockPool pool(5, nullptr);
  Blocks out = Take(&pool, 2);
  EXPECT_FALSE(pool.Allocate(3, &out));
  EXPECT_EQ(out, (Blocks{1, 2}));
  EXPECT_EQ(pool.FreeBlocks(), (Blocks{3, 4}));
  EXPECT_EQ(pool.ref_count(3), 0);
}

TEST(BlockPool, UnhashedBlocksAreFreedToTheFront) {
  BlockPool pool(6, nullptr);
  Take(&pool, 3);
  pool.Free(Blocks{1, 2, 3});
  // Reverse order, each at the front: 3, then 2, then 1.
  EXPECT_EQ(pool.FreeBlocks(), (Blocks{1, 2, 3, 4, 5}));
  Take(&pool, 2);
  pool.Free(Blocks{2});
  EXPECT_EQ(pool.FreeBlocks(), (Blocks{2, 3, 4, 5}));
}

TEST(BlockPool, HashedBlocksAreFreedToTheBackTailFirst) {
  PrefixIndex index(6, 1, 1);
  BlockPool pool(6, &index);
  Take(&pool, 3);
  Index(&index, 1, 10);
  Index(&index, 2, 20);
  pool.Free(Blocks{1, 2, 3});  // 3 is unhashed -> front; 2, then 1 -> back
  EXPECT_EQ(pool.FreeBlocks(), (Blocks{3, 4, 5, 2, 1}));
}

TEST(BlockPool, TakingABlockEvictsIt) {
  PrefixIndex index(3, 1, 1);
  BlockPool pool(3, &index);
  Take(&pool, 2);
  Index(&index, 1, 10);
  Index(&index, 2, 20);
  pool.Free(Blocks{1, 2});
  EXPECT_EQ(index.num_cached_blocks(), 2);
  EXPECT_EQ(Take(&pool, 1), (Blocks{2}));
  EXPECT_FALSE(index.Contains(2));
  EXPECT_TRUE(index.Contains(1));
  EXPECT_EQ(index.num_cached_blocks(), 1);
}

TEST(BlockPool, TouchTakesAFreeBlockOutOfTheMiddleAndCounts) {
  BlockPool pool(6, nullptr);
  pool.Touch(Blocks{3, kNullBlock});
  EXPECT_EQ(pool.FreeBlocks(), (Blocks{1, 2, 4, 5}));
  EXPECT_EQ(pool.ref_count(3), 1);
  pool.Touch(Blocks{3});
  EXPECT_EQ(pool.ref_count(3), 2);
  EXPECT_EQ(pool.num_free_blocks(), 4);
  pool.Free(Blocks{3});
  EXPECT_EQ(pool.num_free_blocks(), 4);
  pool.Free(Blocks{3});
  EXPECT_EQ(pool.FreeBlocks(), (Blocks{3, 1, 2, 4, 5}));
}

TEST(BlockPool, NullBlockIsNeverTouchedOrFreed) {
  BlockPool pool(3, nullptr);
  pool.Touch(Blocks{kNullBlock});
  pool.Free(Blocks{kNullBlock});
  EXPECT_EQ(pool.ref_count(kNullBlock), 0);
  EXPECT_EQ(pool.FreeBlocks(), (Blocks{1, 2}));
}

TEST(BlockPool, FreeingAFreeBlockIsABrokenInvariant) {
  BlockPool pool(3, nullptr);
  EXPECT_THROW(pool.Free(Blocks{1}), InternalError);
}

TEST(BlockPool, LowerLevelsAreTakenFirst) {
  PrefixIndex index(7, 1, 1);
  BlockPool pool(7, &index);
  Take(&pool, 6);
  for (BlockId b = 1; b <= 5; ++b) Index(&index, b, b);
  pool.SetLevel(2, 63);
  pool.SetLevel(3, 1);
  pool.SetLevel(4, 63);
  pool.SetLevel(6, 9);
  pool.Free(Blocks{1, 2, 3, 4, 5, 6});  // 6 is not in the index: its level is over
  EXPECT_EQ(pool.FreeBlocks(), (Blocks{6, 5, 1, 3, 4, 2}));
  EXPECT_EQ(pool.level(6), 0);
  pool.SetLevel(2, 1);  // a free one joins the back of its new level
  pool.SetLevel(5, 1);
  EXPECT_EQ(pool.FreeBlocks(), (Blocks{6, 1, 3, 2, 5, 4}));
  pool.Touch(Blocks{2});
  EXPECT_EQ(pool.FreeBlocks(), (Blocks{6, 1, 3, 5, 4}));
  pool.Free(Blocks{2});
  EXPECT_EQ(pool.level(2), 1);
  EXPECT_EQ(Take(&pool, 6), (Blocks{6, 1, 3, 5, 2, 4}));
  for (BlockId b = 1; b <= 6; ++b) EXPECT_EQ(pool.level(b), 0);
}

TEST(BlockPool, LevelsOutOfRangeAreBrokenInvariants) {
  BlockPool pool(3, nullptr);
  EXPECT_THROW(pool.SetLevel(1, 64), InternalError);
  EXPECT_THROW(pool.SetLevel(1, -1), InternalError);
  EXPECT_THROW(pool.SetLevel(kNullBlock, 1), InternalError);
  EXPECT_THROW(pool.SetLevel(3, 1), InternalError);
}

TEST(BlockPool, ResetNeedsEveryBlockFree) {
  PrefixIndex index(4, 1, 1);
  BlockPool pool(4, &index);
  Take(&pool, 2);
  Index(&index, 1, 10);
  pool.Free(Blocks{1});
  EXPECT_FALSE(pool.ResetPrefixCache());
  EXPECT_TRUE(index.Contains(1));
  pool.Free(Blocks{2});
  EXPECT_TRUE(pool.ResetPrefixCache());
  EXPECT_EQ(index.num_cached_blocks(), 0);
  EXPECT_EQ(pool.num_free_blocks(), 3);
}

}  // namespace
}  // namespace fastllm
