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

// Counts of blocks are sums over the groups. `nodes` has one prefix node for each unit (config.block_size tokens).
class KvCoordinator {
 public:
  // `pool` and `index` (null: prefix caching is off) are not owned.
  KvCoordinator(const KvConfig& config, BlockPool* pool, const PrefixIndex* index);

  void SetNumSlots(int32_t count);
  void Reserve(KvSlot slot, int32_t num_tokens);

  // The longest hit that all groups can use, in units: a multiple of the block size of every group.
  int32_t HitLength(std::span<const PrefixNode> nodes) const;
  // Whether the nodes are one hit for all groups beside which the last token can be computed again.
  bool CanRepeatLast(std::span<const PrefixNode> nodes) const;
  // Of a hit of num_computed tokens, as in GroupManager.
  int32_t BlocksInHit(std::span<const PrefixNode> nodes, int32_t num_computed) const;
  int32_t FreeBlocksInHit(std::span<const PrefixNode> nodes, int32_t num_computed) const;
  void AttachHit(KvSlot slot, std::span<const PrefixNode> nodes, int32_t num_computed);

  // Of a sequence that has just a hit of num_covered tokens (whole blocks in every group).
  int32_t BlocksToGrowHit(int32_t num_covered, int32_t end) const;
  int32_t BlocksToGrow(KvSlot slot, int32_t end) const;
  int32_t PeakBlocks(int32_t num_tokens) const;
  void FreeBehind(KvSlot slot, int32_t num_settled);
  // Extends the tables; new_blocks, when given, becomes [group][entry], what each table got.
  // The pool must have the blocks.
  void Grow(KvSlot slot, int32_t end, std::vector<std::vector<BlockId>>* new_blocks);
  void Free(KvSlot slot);

  // Tokens that the tables of all groups cover.
  int32_t num_covered(KvSlot slot) const;
  int32_t num_held(KvSlot slot) const;
  // Fills blocks[group] with the block that ends at the unit. False when every group has none.
  bool BlocksEndingAt(KvSlot slot, int32_t unit, std::vector<BlockId>* blocks) const;

  int32_t num_groups() const { return static_cast<int32_t>(groups_.size()); }
  const std::vector<BlockId>& table(int32_t group, KvSlot slot) const { return groups_[group].table(slot); }

 private:
  std::vector<GroupManager> groups_;
  int32_t alignment_ = 1;  // of hits, in units
};

// Block size of each group in units of config.block_size.
std::vector<int32_t> GroupBlockUnits(const KvConfig& config);

}  // namespace fastllm
