// GroupManager: the block tables of one KV group, i.e. of the layers that share one kind of KV need. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/base/ids.h"
#include "core/kv/block_pool.h"
#include "core/kv/kv_need.h"
#include "core/kv/prefix_index.h"

namespace fastllm {

// The caller's dense number of a sequence: 0, 1, 2, ... Tables are arrays over it.
using KvSlot = int32_t;

// A KvNeed decides which entries of a table hold blocks; the others hold the null block. A block of the group covers
// blocks_per_entry units of the prefix index; `nodes` is a run of prefix nodes (one per unit) from the start of a
// sequence, and hits are a whole number of entries long.
class GroupManager {
 public:
  // `pool` and `index` (null: prefix caching is off) are not owned.
  GroupManager(std::unique_ptr<KvNeed> need, int32_t group, int32_t block_size, int32_t blocks_per_entry,
               BlockPool* pool, const PrefixIndex* index);

  // Makes slots 0 .. count-1 exist, with empty tables.
  void SetNumSlots(int32_t count) { tables_.resize(count); }
  // So that a table of that many tokens grows without allocating memory.
  void Reserve(KvSlot slot, int32_t num_tokens) { tables_[slot].blocks.reserve(EntriesFor(num_tokens)); }

  // The longest usable hit among the nodes, in units.
  int32_t HitLength(std::span<const PrefixNode> nodes) const;
  // Whether all of the nodes are a usable hit for a sequence that computes their last token again and writes nothing.
  bool CanRepeatLast(std::span<const PrefixNode> nodes) const;
  // A hit is all of the nodes, and num_computed its tokens: theirs, or one less where the last is computed again.
  // Of the blocks that AttachHit() would take: how many, and how many of them are in the pool's free list.
  int32_t BlocksInHit(std::span<const PrefixNode> nodes, int32_t num_computed) const;
  int32_t FreeBlocksInHit(std::span<const PrefixNode> nodes, int32_t num_computed) const;
  // Puts a hit into the empty table of a slot and takes references.
  void AttachHit(KvSlot slot, std::span<const PrefixNode> nodes, int32_t num_computed);

  // Blocks that a table which covers num_covered tokens (whole entries) takes from the pool to cover `end` tokens.
  int32_t BlocksToGrow(int32_t num_covered, int32_t end) const;
  int32_t PeakBlocks(int32_t num_tokens) const { return need_->PeakBlocks(num_tokens); }
  // Gives back the blocks that are not read once num_settled tokens are final; their entries become null.
  void FreeBehind(KvSlot slot, int32_t num_settled);
  // Extends the table so that it covers `end` tokens; `added`, when given, becomes the new entries. The pool must have
  // BlocksToGrow() free blocks.
  void Grow(KvSlot slot, int32_t end, std::vector<BlockId>* added);
  // Gives all blocks of the slot back; its table is empty afterwards.
  void Free(KvSlot slot);

  const std::vector<BlockId>& table(KvSlot slot) const { return tables_[slot].blocks; }
  int32_t num_covered(KvSlot slot) const { return static_cast<int32_t>(table(slot).size()) * block_size_; }
  int32_t num_held(KvSlot slot) const { return tables_[slot].num_held; }
  // The block whose last unit is `unit`; null when none ends there.
  BlockId BlockEndingAt(KvSlot slot, int32_t unit) const;
  int32_t blocks_per_entry() const { return blocks_per_entry_; }

 private:
  struct Table {
    std::vector<BlockId> blocks;
    int32_t first = 0;     // entries before it are null
    int32_t num_held = 0;  // entries that are not null
  };

  int32_t EntriesFor(int32_t num_tokens) const { return (num_tokens + block_size_ - 1) / block_size_; }
  int32_t FirstInHit(int32_t entries, int32_t num_computed) const;
  BlockId HitBlock(std::span<const PrefixNode> nodes, int32_t entry) const;

  std::unique_ptr<KvNeed> need_;
  int32_t group_;
  int32_t block_size_;        // tokens
  int32_t blocks_per_entry_;  // units of the index
  BlockPool* pool_;
  const PrefixIndex* index_;
  std::vector<Table> tables_;  // [slot]
};

}  // namespace fastllm
