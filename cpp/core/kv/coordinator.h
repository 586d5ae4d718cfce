// KvCoordinator: all KV groups of a model as one. A sequence has a block table in every group; room is made in all of
// them or in none, and a prefix hit is as long as every group can use. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/base/ids.h"
#include "core/config/resolved.h"
#include "core/kv/block_pool.h"
#include "core/kv/group_manager.h"
#include "core/kv/prefix_index.h"

namespace fastllm {

class KvCoordinator {
 public:
  // `pool` and `index` (null: prefix caching is off) are not owned.
  KvCoordinator(const std::vector<KvGroupSpec>& groups, int32_t block_size, BlockPool* pool, const PrefixIndex* index);

  void SetNumSlots(int32_t count);
  // Blocks that all groups take together, from tables of num_blocks entries each, to cover num_tokens tokens.
  int32_t BlocksToGrow(int32_t num_blocks, int32_t num_tokens) const;
  // The longest hit that all groups can use, in blocks.
  int32_t HitLength(std::span<const PrefixNode> nodes) const;
  int32_t FreeBlocksInHit(std::span<const PrefixNode> nodes) const;
  void AttachHit(KvSlot slot, std::span<const PrefixNode> nodes);
  // Extends the tables; new_blocks, when given, becomes [group][block], the blocks that each table got.
  // The pool must have the blocks.
  void Grow(KvSlot slot, int32_t num_tokens, std::vector<std::vector<BlockId>>* new_blocks);
  void Free(KvSlot slot);

  // Entries in each table of the slot: the same in all groups.
  int32_t num_blocks(KvSlot slot) const { return static_cast<int32_t>(table(0, slot).size()); }
  int32_t num_groups() const { return static_cast<int32_t>(groups_.size()); }
  const std::vector<BlockId>& table(int32_t group, KvSlot slot) const { return groups_[group]->table(slot); }

 private:
  std::vector<std::unique_ptr<GroupManager>> groups_;
};

}  // namespace fastllm
