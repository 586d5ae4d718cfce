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
class BlockPool {
 public:
  // `index` (may be null: nothing is ever cached) is not owned; it must cover num_blocks blocks and outlive the pool.
  BlockPool(int32_t num_blocks, PrefixIndex* index);

  // Takes `count` blocks from the front of the free list, each with one reference, and appends them to `out`. Blocks
  // that were in the prefix index leave it. False, and nothing changed, when fewer than `count` are free. O(count).
  bool Allocate(int32_t count, std::vector<BlockId>* out);

  // Adds a reference to each block (a prefix hit); free ones leave the free list. Null blocks are skipped. O(1) each.
  void Touch(std::span<const BlockId> blocks);

  // Drops a reference of each block of a table, last block first, so that the tail of a chain is evicted before its
  // head. At zero a block joins the free list: at the back when it is in the prefix index, else at the front.
  void Free(std::span<const BlockId> table);

  // Forgets the prefix index. False, and nothing changed, while any block is referenced.
  bool ResetPrefixCache();

  int32_t num_blocks() const { return static_cast<int32_t>(records_.size()); }
  int32_t num_free_blocks() const { return num_free_; }
  int32_t num_used_blocks() const { return num_blocks() - 1 - num_free_; }
  int32_t ref_count(BlockId block) const;

  // The free list from the front. O(num_blocks): for tests and dumps.
  std::vector<BlockId> FreeBlocks() const;

 private:
  // Links are block numbers. The null block, which is never free, closes the ring: its next is the front of the free
  // list and its prev the back.
  struct Record {
    int32_t ref_count = 0;
    BlockId prev = kNullBlock;
    BlockId next = kNullBlock;
  };

  void Unlink(BlockId block);
  void LinkBetween(BlockId prev, BlockId block, BlockId next);

  std::vector<Record> records_;
  int32_t num_free_ = 0;
  PrefixIndex* index_;
};

}  // namespace fastllm
