#include "core/kv/prefix_index.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "core/kv/block_hash.h"

namespace fastllm {
namespace {

using Tokens = std::vector<TokenId>;
using Blocks = std::vector<BlockId>;

std::pair<uint64_t, uint64_t> Pair(const BlockHash& h) { return {h.lo, h.hi}; }

TEST(BlockHash, DependsOnParentTokensOrderAndExtraKeys) {
  const Tokens tokens = {1, 2, 3, 4};
  const BlockHash base = HashBlock(kChainSeed, tokens, "");
  EXPECT_EQ(base, HashBlock(kChainSeed, tokens, ""));
  EXPECT_NE(base, HashBlock(base, tokens, ""));
  EXPECT_NE(base, HashBlock(kChainSeed, Tokens{1, 2, 4, 3}, ""));
  EXPECT_NE(base, HashBlock(kChainSeed, Tokens{3, 4, 1, 2}, ""));
  EXPECT_NE(base, HashBlock(kChainSeed, tokens, "salt:a"));
  EXPECT_NE(HashBlock(kChainSeed, tokens, "salt:a"), HashBlock(kChainSeed, tokens, "salt:b"));
  EXPECT_NE(HashBlock(kChainSeed, Tokens{0}, ""), HashBlock(kChainSeed, Tokens{0, 0}, ""));
}

TEST(BlockHash, NeitherHalfCollidesOnSmallInputs) {
  std::set<uint64_t> lo, hi;
  int count = 0;
  for (TokenId a = 0; a < 200; ++a) {
    for (TokenId b = 0; b < 200; ++b, ++count) {
      const auto [l, h] = Pair(HashBlock(kChainSeed, Tokens{a, b, a}, ""));
      lo.insert(l);
      hi.insert(h);
    }
  }
  EXPECT_EQ(lo.size(), count);
  EXPECT_EQ(hi.size(), count);
}

class PrefixIndexTest : public ::testing::Test {
 protected:
  PrefixNode Insert(PrefixNode parent, const Tokens& tokens, BlockId block, const std::string& extra = "") {
    return index_.Insert(parent, hash_, tokens, extra, Blocks{block});
  }
  PrefixNode Find(PrefixNode parent, const Tokens& tokens, const std::string& extra = "") {
    return index_.Find(parent, hash_, tokens, extra);
  }

  PrefixIndex index_{10, 2, 1};
  BlockHash hash_{7, 7};  // the same for everything: each test also is one of colliding hashes
};

TEST_F(PrefixIndexTest, CollidingHashesNeverShareABlock) {
  const PrefixNode a = Insert(kRootNode, {1, 2}, 1);
  const PrefixNode b = Insert(kRootNode, {1, 3}, 2);
  const PrefixNode c = Insert(a, {1, 2}, 3);
  const PrefixNode d = Insert(b, {1, 2}, 4);
  const PrefixNode e = Insert(kRootNode, {1, 2}, 5, "salt:x");
  EXPECT_EQ(std::set<PrefixNode>({a, b, c, d, e}).size(), 5u);
  EXPECT_EQ(index_.AnyBlock(Find(kRootNode, {1, 2}), 0), 1);
  EXPECT_EQ(index_.AnyBlock(Find(kRootNode, {1, 3}), 0), 2);
  EXPECT_EQ(index_.AnyBlock(Find(a, {1, 2}), 0), 3);
  EXPECT_EQ(index_.AnyBlock(Find(b, {1, 2}), 0), 4);
  EXPECT_EQ(index_.AnyBlock(Find(kRootNode, {1, 2}, "salt:x"), 0), 5);
  EXPECT_EQ(Find(kRootNode, {2, 1}), kNoNode);
  EXPECT_EQ(Find(kRootNode, {1, 2}, "salt:y"), kNoNode);
  EXPECT_EQ(Find(c, {1, 2}), kNoNode);
}

TEST_F(PrefixIndexTest, EqualContentsAreTwoBlocksOfOneNode) {
  const PrefixNode a = Insert(kRootNode, {1, 2}, 1);
  EXPECT_EQ(Insert(kRootNode, {1, 2}, 2), a);
  EXPECT_EQ(index_.num_cached_blocks(), 2);
  EXPECT_EQ(index_.num_nodes(), 1);
  EXPECT_TRUE(index_.Erase(2));
  EXPECT_EQ(index_.AnyBlock(a, 0), 1);
  EXPECT_EQ(Insert(kRootNode, {1, 2}, 3), a);
  EXPECT_EQ(Insert(kRootNode, {1, 2}, 4), a);
  EXPECT_TRUE(index_.Erase(3));  // the middle of three
  EXPECT_TRUE(index_.Erase(4));
  EXPECT_EQ(index_.AnyBlock(a, 0), 1);
  EXPECT_TRUE(index_.Erase(1));
  EXPECT_EQ(Find(kRootNode, {1, 2}), kNoNode);
  EXPECT_EQ(index_.num_nodes(), 0);
  EXPECT_FALSE(index_.Erase(1));
}

TEST_F(PrefixIndexTest, NodeWithoutBlockStaysWhileALongerPrefixHangsBelow) {
  const PrefixNode a = Insert(kRootNode, {1, 2}, 1);
  const PrefixNode b = Insert(a, {3, 4}, 2);
  index_.Erase(1);
  EXPECT_EQ(Find(kRootNode, {1, 2}), a);
  EXPECT_EQ(index_.AnyBlock(a, 0), kNullBlock);
  EXPECT_EQ(Insert(kRootNode, {1, 2}, 5), a);  // computed again: the longer prefix is reachable again
  EXPECT_EQ(Find(a, {3, 4}), b);
  index_.Erase(5);
  index_.Erase(2);  // the last holder of both
  EXPECT_EQ(index_.num_nodes(), 0);
}

TEST_F(PrefixIndexTest, AHeldNodeStaysWithoutABlock) {
  const PrefixNode a = Insert(kRootNode, {1, 2}, 1);
  index_.Hold(a);
  index_.Hold(kRootNode);
  index_.Erase(1);
  EXPECT_EQ(index_.num_nodes(), 1);
  EXPECT_EQ(Find(kRootNode, {1, 2}), a);
  EXPECT_EQ(index_.AnyBlock(a, 0), kNullBlock);
  index_.Release(a);
  index_.Release(kRootNode);
  EXPECT_EQ(index_.num_nodes(), 0);
  EXPECT_EQ(Find(kRootNode, {1, 2}), kNoNode);
}

TEST_F(PrefixIndexTest, ANodeWithoutABlockLivesBelowALongerPrefix) {
  const PrefixNode a = Insert(kRootNode, {1, 2}, kNullBlock);
  const PrefixNode b = Insert(a, {3, 4}, 1);
  EXPECT_EQ(index_.num_nodes(), 2);
  EXPECT_EQ(index_.num_cached_blocks(), 1);
  EXPECT_EQ(Find(a, {3, 4}), b);
  index_.Erase(1);
  EXPECT_EQ(index_.num_nodes(), 0);
}

TEST_F(PrefixIndexTest, ClearForgetsEverythingAndStartsAgain) {
  const PrefixNode a = Insert(kRootNode, {1, 2}, 1);
  Insert(a, {3, 4}, 2);
  index_.Clear();
  EXPECT_EQ(index_.num_cached_blocks(), 0);
  EXPECT_EQ(index_.num_nodes(), 0);
  EXPECT_FALSE(index_.Contains(1));
  EXPECT_EQ(Find(kRootNode, {1, 2}), kNoNode);
  const PrefixNode again = Insert(kRootNode, {1, 2}, 2);
  EXPECT_EQ(index_.AnyBlock(again, 0), 2);
}

TEST_F(PrefixIndexTest, BrokenInvariantsThrow) {
  Insert(kRootNode, {1, 2}, 1);
  EXPECT_THROW(Insert(kRootNode, {3, 4}, 1), InternalError);
  EXPECT_THROW(Insert(kRootNode, {1}, 2), InternalError);
}

TEST(PrefixIndexGroups, EachGroupHasItsOwnBlocks) {
  PrefixIndex index(10, 1, 2);
  const Tokens tokens = {5};
  const BlockHash hash = HashBlock(kChainSeed, tokens, "");
  const PrefixNode node = index.Insert(kRootNode, hash, tokens, "", Blocks{1, 2});
  EXPECT_EQ(index.AnyBlock(node, 0), 1);
  EXPECT_EQ(index.AnyBlock(node, 1), 2);
  EXPECT_EQ(index.NodeOf(1), node);
  EXPECT_EQ(index.NodeOf(2), node);
  index.Erase(1);
  EXPECT_EQ(index.AnyBlock(node, 0), kNullBlock);
  EXPECT_EQ(index.AnyBlock(node, 1), 2);
}

}  // namespace
}  // namespace fastllm
