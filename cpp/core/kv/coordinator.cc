#include "core/kv/coordinator.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/base/check.h"

namespace fastllm {

std::vector<int32_t> GroupBlockUnits(const KvConfig& config) {
  std::vector<int32_t> units;
  units.reserve(config.groups.size());
  for (const KvGroupSpec& spec : config.groups) {
    units.push_back(spec.block_size > 0 ? spec.block_size / config.block_size : 1);
  }
  return units;
}

KvCoordinator::KvCoordinator(const KvConfig& config, BlockPool* pool, const PrefixIndex* index) {
  FASTLLM_CHECK(!config.groups.empty(), "a model needs one KV group at least");
  const std::vector<int32_t> units = GroupBlockUnits(config);
  for (size_t i = 0; i < units.size(); ++i) {
    groups_.emplace_back(MakeKvNeed(config.groups[i], config.block_size, config.max_step_tokens),
                         static_cast<int32_t>(i), units[i] * config.block_size, units[i], pool, index);
    alignment_ = std::lcm(alignment_, units[i]);
  }
}

void KvCoordinator::SetNumSlots(int32_t count) {
  for (GroupManager& group : groups_) group.SetNumSlots(count);
}

void KvCoordinator::Reserve(KvSlot slot, int32_t num_tokens) {
  for (GroupManager& group : groups_) group.Reserve(slot, num_tokens);
}

int32_t KvCoordinator::HitLength(std::span<const PrefixNode> nodes) const {
  // A group that shortens the hit may make it unusable for one asked before, so go on until all agree.
  auto length = static_cast<int32_t>(nodes.size()) / alignment_ * alignment_;
  for (size_t agreed = 0, i = 0; length > 0 && agreed < groups_.size(); i = (i + 1) % groups_.size()) {
    const int32_t usable = groups_[i].HitLength(nodes.first(length)) / alignment_ * alignment_;
    // A length that was cut to the alignment has not been asked about.
    agreed = usable == length ? agreed + 1 : 0;
    length = usable;
  }
  return length;
}

bool KvCoordinator::CanRepeatLast(std::span<const PrefixNode> nodes) const {
  return std::ranges::all_of(groups_, [nodes](const GroupManager& group) { return group.CanRepeatLast(nodes); });
}

int32_t KvCoordinator::BlocksInHit(std::span<const PrefixNode> nodes, int32_t num_computed) const {
  int32_t sum = 0;
  for (const GroupManager& group : groups_) sum += group.BlocksInHit(nodes, num_computed);
  return sum;
}

int32_t KvCoordinator::FreeBlocksInHit(std::span<const PrefixNode> nodes, int32_t num_computed) const {
  int32_t sum = 0;
  for (const GroupManager& group : groups_) sum += group.FreeBlocksInHit(nodes, num_computed);
  return sum;
}

void KvCoordinator::AttachHit(KvSlot slot, std::span<const PrefixNode> nodes, int32_t num_computed) {
  for (GroupManager& group : groups_) group.AttachHit(slot, nodes, num_computed);
}

int32_t KvCoordinator::BlocksToGrowHit(int32_t num_covered, int32_t end) const {
  int32_t sum = 0;
  for (const GroupManager& group : groups_) sum += group.BlocksToGrow(num_covered, end);
  return sum;
}

int32_t KvCoordinator::BlocksToGrow(KvSlot slot, int32_t end) const {
  int32_t sum = 0;
  for (const GroupManager& group : groups_) sum += group.BlocksToGrow(group.num_covered(slot), end);
  return sum;
}

int32_t KvCoordinator::PeakBlocks(int32_t num_tokens) const {
  int64_t sum = 0;
  for (const GroupManager& group : groups_) sum += group.PeakBlocks(num_tokens);
  return static_cast<int32_t>(std::min<int64_t>(sum, std::numeric_limits<int32_t>::max()));
}

void KvCoordinator::FreeBehind(KvSlot slot, int32_t num_settled) {
  for (GroupManager& group : groups_) group.FreeBehind(slot, num_settled);
}

void KvCoordinator::Grow(KvSlot slot, int32_t end, std::vector<std::vector<BlockId>>* new_blocks) {
  if (new_blocks != nullptr) new_blocks->resize(groups_.size());
  for (size_t i = 0; i < groups_.size(); ++i) {
    groups_[i].Grow(slot, end, new_blocks == nullptr ? nullptr : &(*new_blocks)[i]);
  }
}

void KvCoordinator::Free(KvSlot slot) {
  for (GroupManager& group : groups_) group.Free(slot);
}

int32_t KvCoordinator::num_covered(KvSlot slot) const {
  int32_t least = std::numeric_limits<int32_t>::max();
  for (const GroupManager& group : groups_) least = std::min(least, group.num_covered(slot));
  return least;
}

int32_t KvCoordinator::num_held(KvSlot slot) const {
  int32_t sum = 0;
  for (const GroupManager& group : groups_) sum += group.num_held(slot);
  return sum;
}

bool KvCoordinator::BlocksEndingAt(KvSlot slot, int32_t unit, std::vector<BlockId>* blocks) const {
  bool any = false;
  for (size_t i = 0; i < groups_.size(); ++i) {
    (*blocks)[i] = groups_[i].BlockEndingAt(slot, unit);
    any |= (*blocks)[i] != kNullBlock;
  }
  return any;
}

}  // namespace fastllm
