#include "core/kv/coordinator.h"

#include <algorithm>

#include "core/base/check.h"

namespace fastllm {

KvCoordinator::KvCoordinator(const std::vector<KvGroupSpec>& groups, int32_t block_size, BlockPool* pool,
                             const PrefixIndex* index) {
  FASTLLM_CHECK(!groups.empty(), "a model needs one KV group at least");
  for (const KvGroupSpec& spec : groups) {
    groups_.push_back(MakeGroupManager(spec, num_groups(), block_size, pool, index));
  }
}

void KvCoordinator::SetNumSlots(int32_t count) {
  for (auto& group : groups_) group->SetNumSlots(count);
}

int32_t KvCoordinator::BlocksToGrow(int32_t num_blocks, int32_t num_tokens) const {
  int32_t sum = 0;
  for (const auto& group : groups_) sum += group->BlocksToGrow(num_blocks, num_tokens);
  return sum;
}

int32_t KvCoordinator::HitLength(std::span<const PrefixNode> nodes) const {
  // A group that shortens the hit may make it unusable for one asked before, so go on until all agree.
  size_t length = nodes.size();
  for (bool changed = true; changed;) {
    changed = false;
    for (const auto& group : groups_) {
      const size_t usable = static_cast<size_t>(group->HitLength(nodes.first(length)));
      if (usable == length) continue;
      length = usable;
      changed = groups_.size() > 1;
    }
  }
  return static_cast<int32_t>(length);
}

int32_t KvCoordinator::FreeBlocksInHit(std::span<const PrefixNode> nodes) const {
  int32_t sum = 0;
  for (const auto& group : groups_) sum += group->FreeBlocksInHit(nodes);
  return sum;
}

void KvCoordinator::AttachHit(KvSlot slot, std::span<const PrefixNode> nodes) {
  for (auto& group : groups_) group->AttachHit(slot, nodes);
}

void KvCoordinator::Grow(KvSlot slot, int32_t num_tokens, std::vector<std::vector<BlockId>>* new_blocks) {
  if (new_blocks != nullptr) new_blocks->resize(groups_.size());
  for (size_t i = 0; i < groups_.size(); ++i) {
    groups_[i]->Grow(slot, num_tokens, new_blocks == nullptr ? nullptr : &(*new_blocks)[i]);
  }
}

void KvCoordinator::Free(KvSlot slot) {
  for (auto& group : groups_) group->Free(slot);
}

}  // namespace fastllm
