// Random operations on a KvManager; after each one the pool, the tables and the index must agree.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "core/kv/kv_manager.h"

namespace fastllm {
namespace {

using Tokens = std::vector<TokenId>;

class RandomKv : public ::testing::TestWithParam<int> {
 protected:
  static constexpr int32_t kBlockSize = 4;
  static constexpr int kSlots = 8;

  struct Held {
    bool open = false;
    int32_t computed = 0;  // 0: not admitted
    std::string salt;
    Tokens tokens;
  };

  RandomKv() : rng_(GetParam()), kv_(MakeConfig()) {}

  static KvConfig MakeConfig() {
    KvConfig config;
    config.num_blocks = 30;
    config.block_size = kBlockSize;
    return config;
  }

  int32_t Random(int32_t lo, int32_t hi) { return std::uniform_int_distribution<int32_t>(lo, hi)(rng_); }

  void Act(KvSlot slot) {
    Held& h = held_[slot];
    if (!h.open) {
      h = {true, 0, std::string(Random(0, 1), 's'), {}};
      for (int32_t i = Random(1, 40); i > 0; --i) h.tokens.push_back(Random(0, 15) == 0 ? 1 : 0);
      kv_.Open(slot, h.salt);
    } else if (h.computed == 0) {
      const int32_t hit = kv_.FindPrefix(slot, h.tokens);
      const auto num_tokens = static_cast<int32_t>(h.tokens.size());
      EXPECT_LT(hit, num_tokens);
      EXPECT_EQ((hit + (kv_.hit_is_whole() ? 1 : 0)) % kBlockSize, 0);
      EXPECT_TRUE(!kv_.hit_is_whole() || hit == num_tokens - 1);
      const int32_t num_new = Random(1, static_cast<int32_t>(h.tokens.size()) - hit);
      if (kv_.Admit(slot, h.tokens, hit, num_new)) h.computed = hit + num_new;
    } else if (const int32_t action = Random(0, 9); action == 0) {
      kv_.Close(slot);
      h = {};
    } else if (action == 1) {
      kv_.Free(slot);
      h.computed = 0;
    } else {
      if (h.computed == static_cast<int32_t>(h.tokens.size())) h.tokens.push_back(Random(0, 1));
      const int32_t num_new = Random(1, static_cast<int32_t>(h.tokens.size()) - h.computed);
      if (kv_.Extend(slot, h.tokens, h.computed, num_new, nullptr)) h.computed += num_new;
    }
  }

  // The prefix of whole blocks that a block's KV stands for: salt and tokens up to the block's end.
  using Content = std::pair<std::string, Tokens>;

  void Check() {
    std::map<BlockId, int32_t> refs;
    std::map<BlockId, std::set<Content>> contents;
    for (KvSlot slot = 0; slot < kSlots; ++slot) {
      const Held& h = held_[slot];
      if (!h.open) continue;
      const std::vector<BlockId>& table = kv_.table(slot, 0);
      EXPECT_EQ(static_cast<int32_t>(table.size()), (h.computed + kBlockSize - 1) / kBlockSize);
      EXPECT_EQ(std::set<BlockId>(table.begin(), table.end()).size(), table.size());
      for (size_t i = 0; i < table.size(); ++i) {
        ++refs[table[i]];
        const int32_t end = std::min<int32_t>(h.computed, static_cast<int32_t>(i + 1) * kBlockSize);
        contents[table[i]].insert({h.salt, Tokens(h.tokens.begin(), h.tokens.begin() + end)});
        EXPECT_EQ(kv_.index()->Contains(table[i]), static_cast<int32_t>(i + 1) * kBlockSize <= h.computed);
      }
    }
    const BlockPool& pool = kv_.pool();
    for (BlockId b = 1; b < pool.num_blocks(); ++b) EXPECT_EQ(pool.ref_count(b), refs.contains(b) ? refs[b] : 0);
    for (const auto& [block, of_block] : contents) EXPECT_EQ(of_block.size(), 1u) << "block " << block;
    CheckNodes(contents);
    CheckFreeList(refs);
  }

  // Two blocks have one node exactly when their contents are equal.
  void CheckNodes(const std::map<BlockId, std::set<Content>>& contents) {
    std::map<Content, PrefixNode> node_of;
    std::map<PrefixNode, Content> content_of;
    for (const auto& [block, of_block] : contents) {
      const PrefixNode node = kv_.index()->NodeOf(block);
      if (node == kNoNode) continue;
      EXPECT_EQ(node_of.emplace(*of_block.begin(), node).first->second, node);
      EXPECT_EQ(content_of.emplace(node, *of_block.begin()).first->second, *of_block.begin());
    }
  }

  void CheckFreeList(const std::map<BlockId, int32_t>& refs) {
    const std::vector<BlockId> list = kv_.pool().FreeBlocks();
    const std::set<BlockId> free(list.begin(), list.end());
    EXPECT_EQ(list.size(), free.size());
    EXPECT_EQ(static_cast<int32_t>(list.size()), kv_.pool().num_free_blocks());
    EXPECT_EQ(static_cast<int32_t>(list.size() + refs.size()), kv_.pool().num_blocks() - 1);
    for (BlockId b : list) EXPECT_FALSE(refs.contains(b));
    EXPECT_FALSE(free.contains(kNullBlock));
    EXPECT_GE(kv_.reserved_blocks(), 0);
  }

  std::mt19937 rng_;
  KvManager kv_;
  Held held_[kSlots];
};

TEST_P(RandomKv, PoolTablesAndIndexAgree) {
  for (int i = 0; i < 3000 && !HasFailure(); ++i) {
    Act(Random(0, kSlots - 1));
    Check();
  }
  for (KvSlot slot = 0; slot < kSlots; ++slot) {
    if (held_[slot].open) kv_.Close(slot);
  }
  EXPECT_EQ(kv_.pool().num_used_blocks(), 0);
  EXPECT_EQ(kv_.reserved_blocks(), 0);
  EXPECT_TRUE(kv_.ResetPrefixCache());
  EXPECT_EQ(kv_.index()->num_nodes(), 0);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomKv, ::testing::Range(1, 5));

}  // namespace
}  // namespace fastllm
