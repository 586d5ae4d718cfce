// BlockPool: who holds which KV block, and which block is taken next. Knows block numbers only: no tokens, no memory.
// Contracts: cpp/docs/contract.md, section "kv". One thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/ids.h"

namespace fastllm {

class PrefixIndex;

// Blocks are numbered 0 .. num_blocks-1. Block 0 is the null block: it fills table entries that hold no KV, is never
// handed out, freed or indexed. Every other block is either referenced (ref count > 0) or in the free list, which is
// kept in eviction order: the front is taken first. A free block may still be in the prefix index, and so be hit.
// Blocks have a level: all free blocks of a lower one are taken before any of a higher one. Level 0 is the normal one;
// pinned prefixes have others.
class BlockPool {
 public:
  static constexpr int32_t kMaxLevel = 63;

  // `index` (may be null: nothing is ever cached) is not owned; it must cover num_blocks blocks and outlive the pool.
  BlockPool(int32_t num_blocks, PrefixIndex* index);

  // Takes `count` blocks from the front of the free list, each with one reference, and appends them to `out`. Blocks
  // that were in the prefix index leave it and are of level 0 again. False, and nothing changed, when fewer than
  // `count` are free. O(count).
  bool Allocate(int32_t count, std::vector<BlockId>* out);

  // Adds a reference to each block (a prefix hit); free ones leave the free list. Null blocks are skipped. O(1) each.
  void Touch(std::span<const BlockId> blocks);

  // Drops a reference of each block of a table, last block first, so that the tail of a chain is evicted before its
  // head. At zero a block joins the free list: at the back of its level when it is in the prefix index, else at the
  // front of level 0.
  void Free(std::span<const BlockId> table);

  // Moves a block to a level in [0, kMaxLevel]; a free one to the back of it. O(1).
  void SetLevel(BlockId block, int32_t level);
  int32_t level(BlockId block) const { return records_[block].level; }

  // Forgets the prefix index and all levels. False, and nothing changed, while any block is referenced.
  bool ResetPrefixCache();

  int32_t num_blocks() const { return num_blocks_; }
  int32_t num_free_blocks() const { return num_free_; }
  int32_t num_used_blocks() const { return num_blocks() - 1 - num_free_; }
  int32_t ref_count(BlockId block) const;

  // The free list from the front. O(num_blocks): for tests and dumps.
  std::vector<BlockId> FreeBlocks() const;

 private:
  // Links are record numbers. A record that is no block closes the ring of each level: its next is the front of the
  // level's list and its prev the back. Level 0 uses the null block's, the others have theirs behind the blocks'.
  struct Record {
    int32_t ref_count = 0;
    int32_t prev = 0;
    int32_t next = 0;
    int32_t level = 0;
  };

  int32_t EndOf(int32_t level) const { return level == 0 ? kNullBlock : num_blocks_ + level - 1; }
  void Unlink(BlockId block);
  void LinkBetween(int32_t prev, BlockId block, int32_t next);
  void LinkBack(BlockId block);

  int32_t num_blocks_;
  std::vector<Record> records_;
  int32_t num_free_ = 0;
  uint64_t occupied_ = 0;  // bit l: level l has free blocks
  PrefixIndex* index_;
};

}  // namespace fastllm
