// GroupManager: the block tables of one KV group, i.e. of the layers that share one kind of KV need. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/base/ids.h"
#include "core/config/resolved.h"
#include "core/kv/block_pool.h"
#include "core/kv/prefix_index.h"
#include "fastllm/status.h"

namespace fastllm {

// The caller's dense number of a sequence: 0, 1, 2, ... Tables are arrays over it.
using KvSlot = int32_t;

// A kind of group decides which blocks a sequence needs and which cached prefixes it can use. All kinds take blocks
// from one pool. `nodes` is a run of prefix nodes from the start of a sequence.
class GroupManager {
 public:
  virtual ~GroupManager() = default;

  // Makes slots 0 .. count-1 exist, with empty tables.
  virtual void SetNumSlots(int32_t count) = 0;

  // Blocks that a table of num_blocks entries takes from the pool to cover num_tokens tokens.
  virtual int32_t BlocksToGrow(int32_t num_blocks, int32_t num_tokens) const = 0;

  // The longest usable hit among nodes.first(n), in blocks.
  virtual int32_t HitLength(std::span<const PrefixNode> nodes) const = 0;

  // Of the blocks that AttachHit would take, how many are in the pool's free list.
  virtual int32_t FreeBlocksInHit(std::span<const PrefixNode> nodes) const = 0;

  // Puts a hit of HitLength() blocks into the empty table of a slot and takes references.
  virtual void AttachHit(KvSlot slot, std::span<const PrefixNode> nodes) = 0;

  // Extends the table so that it covers num_tokens tokens; `added`, when given, becomes the new block ids. The
  // pool must have BlocksToGrow(table(slot).size(), num_tokens) free blocks.
  virtual void Grow(KvSlot slot, int32_t num_tokens, std::vector<BlockId>* added) = 0;

  // Gives all blocks of the slot back; its table is empty afterwards.
  virtual void Free(KvSlot slot) = 0;

  virtual const std::vector<BlockId>& table(KvSlot slot) const = 0;
};

// Ok when a manager for the kind exists.
Status CheckGroupSpec(const KvGroupSpec& spec);

// `index` is null when prefix caching is off. FASTLLM_CHECKs the kind.
std::unique_ptr<GroupManager> MakeGroupManager(const KvGroupSpec& spec, int32_t group, int32_t block_size,
                                               BlockPool* pool, const PrefixIndex* index);

}  // namespace fastllm
