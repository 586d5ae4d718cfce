// PrefixIndex: from the contents of a token prefix to the KV blocks that hold it. Contracts: cpp/docs/contract.md,
// section "kv". One thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/ids.h"
#include "core/kv/block_hash.h"

namespace fastllm {

// The name of one prefix of full blocks, given by its content: two blocks have one node exactly when the tokens and
// extra keys of the whole chain up to them are equal.
using PrefixNode = int32_t;
inline constexpr PrefixNode kRootNode = -1;  // the empty prefix, parent of every block 0
inline constexpr PrefixNode kNoNode = -2;

// A node stays while a block holds it or a longer prefix hangs below it, so a node number that a caller got is valid
// as long as the caller holds a reference to one of its blocks. Equal contents computed twice are two blocks of one
// node; they are not merged, so block tables only grow at the end.
class PrefixIndex {
 public:
  PrefixIndex(int32_t num_blocks, int32_t block_size, int32_t num_groups);

  // The node of the block with these `block_size` tokens and extra keys under `parent`, or kNoNode. The hash finds
  // candidates; parent, tokens and extra keys are compared. O(1).
  PrefixNode Find(PrefixNode parent, const BlockHash& hash, std::span<const TokenId> tokens,
                  std::string_view extra_keys) const;

  // Enters blocks[g], the block of KV group g (null: none), under the content, and returns the node. None of the
  // blocks may be in the index already. O(1).
  PrefixNode Insert(PrefixNode parent, const BlockHash& hash, std::span<const TokenId> tokens,
                    std::string_view extra_keys, std::span<const BlockId> blocks);

  // Takes a block out. False when it was not in. O(1) amortised.
  bool Erase(BlockId block);

  bool Contains(BlockId block) const { return entries_[block].node >= 0; }
  // The block's node; kNoNode when it is not in the index.
  PrefixNode NodeOf(BlockId block) const { return entries_[block].node; }
  // One of the node's blocks in a KV group; the null block when there is none.
  BlockId AnyBlock(PrefixNode node, int32_t group) const { return heads_[node * num_groups_ + group]; }

  void Clear();

  int32_t block_size() const { return block_size_; }
  int32_t num_cached_blocks() const { return num_cached_; }
  int32_t num_nodes() const { return num_nodes_; }

 private:
  // Blocks of one node and group form a list.
  struct Entry {
    PrefixNode node = kNoNode;
    int32_t group = 0;
    BlockId prev = kNullBlock;
    BlockId next = kNullBlock;
  };
  struct Node {
    BlockHash hash;
    PrefixNode parent = kNoNode;
    PrefixNode next = kNoNode;  // in the hash bucket, or in the list of unused nodes
    int32_t holders = 0;        // blocks of any group, plus child nodes
    std::string extra_keys;
  };

  PrefixNode NewNode(PrefixNode parent, const BlockHash& hash, std::span<const TokenId> tokens,
                     std::string_view extra_keys);
  void DropHolder(PrefixNode node);
  void Unchain(PrefixNode node);
  size_t Bucket(const BlockHash& hash) const { return hash.lo & (buckets_.size() - 1); }

  int32_t block_size_;
  int32_t num_groups_;
  int32_t num_cached_ = 0;
  int32_t num_nodes_ = 0;
  PrefixNode unused_ = kNoNode;      // head of the list of unused nodes
  std::vector<Entry> entries_;       // [block]
  std::vector<Node> nodes_;          // [node]
  std::vector<TokenId> tokens_;      // [node][block_size]
  std::vector<BlockId> heads_;       // [node][group]
  std::vector<PrefixNode> buckets_;  // a power of two of them
};

}  // namespace fastllm
