// PrefixIndex: from the contents of a token prefix to the KV blocks that hold it. Contracts: cpp/docs/contract.md,
// section "kv". One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/ids.h"
#include "core/kv/block_hash.h"
#include "core/kv/kv_events.h"

namespace fastllm {

// The name of one prefix of full blocks, given by its content: two blocks have one node exactly when the tokens and
// extra keys of the whole chain up to them are equal.
using PrefixNode = int32_t;
inline constexpr PrefixNode kRootNode = -1;  // the empty prefix, parent of every block 0
inline constexpr PrefixNode kNoNode = -2;

// A node stays while a block is in it, a longer prefix hangs below it or a caller holds it. Equal contents computed
// twice are two blocks of one node; they are not merged, so block tables only grow at the end.
class PrefixIndex {
 public:
  PrefixIndex(int32_t num_blocks, int32_t block_size, int32_t num_groups);

  // The node of the block with these `block_size` tokens and extra keys under `parent`, or kNoNode. The hash finds
  // candidates; parent, tokens and extra keys are compared. O(1).
  PrefixNode Find(PrefixNode parent, const BlockHash& hash, std::span<const TokenId> tokens,
                  std::string_view extra_keys) const;
  // Asks for the memory that Find() of this hash will read: first where its candidates begin, and when that has come
  // the first of them. For long prefixes, of whose nodes little is in the processor's caches.
  void PrefetchBucket(const BlockHash& hash) const { __builtin_prefetch(&buckets_[Bucket(hash.lo)]); }
  void PrefetchNode(const BlockHash& hash) const {
    const PrefixNode node = buckets_[Bucket(hash.lo)];
    if (node == kNoNode) return;
    __builtin_prefetch(&nodes_[node]);
    __builtin_prefetch(TokensOf(node));
  }

  // Enters blocks[g], the block of KV group g (null: none), under the content, and returns the node. None of the
  // blocks may be in the index already. With null blocks only, the caller has to insert a longer prefix, or hold the
  // node, before it does anything else: nothing keeps the node. O(1).
  PrefixNode Insert(PrefixNode parent, const BlockHash& hash, std::span<const TokenId> tokens,
                    std::string_view extra_keys, std::span<const BlockId> blocks);

  // A held node stays until it is released as often. kRootNode needs no holder: nothing happens.
  void Hold(PrefixNode node) {
    if (node != kRootNode) ++nodes_[node].holders;
  }
  void Release(PrefixNode node) { DropHolder(node); }

  // Takes a block out. False when it was not in. O(1) amortised.
  bool Erase(BlockId block);

  bool Contains(BlockId block) const { return entries_[block].node >= 0; }
  // The block's node; kNoNode when it is not in the index.
  PrefixNode NodeOf(BlockId block) const { return entries_[block].node; }
  // One of the node's blocks in a KV group; the null block when there is none.
  BlockId AnyBlock(PrefixNode node, int32_t group) const { return heads_[node * num_groups_ + group]; }

  void Clear();

  // Where it is reported from now on what is stored, removed and cleared; null: nowhere.
  void SetEvents(std::unique_ptr<KvEventRing> events) { events_ = std::move(events); }
  KvEventRing* events() const { return events_.get(); }

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
    uint64_t hash = 0;  // BlockHash.lo; the contents decide
    PrefixNode parent = kNoNode;
    PrefixNode next = kNoNode;  // in the hash bucket, or in the list of unused nodes
    int32_t holders = 0;        // blocks of any group, child nodes, and Hold()
    std::string extra_keys;
  };

  PrefixNode NewNode(PrefixNode parent, const BlockHash& hash, std::span<const TokenId> tokens,
                     std::string_view extra_keys);
  void DropHolder(PrefixNode node);
  void ReportStored(PrefixNode node, int32_t group);
  void Unchain(PrefixNode node);
  size_t Bucket(uint64_t hash) const { return hash & (buckets_.size() - 1); }
  const TokenId* TokensOf(PrefixNode node) const { return tokens_.data() + static_cast<ptrdiff_t>(node) * block_size_; }

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
  std::unique_ptr<KvEventRing> events_;
};

}  // namespace fastllm
