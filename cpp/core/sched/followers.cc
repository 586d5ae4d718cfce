#include "core/sched/followers.h"

#include <utility>

namespace fastllm {

void Followers::Add(RequestId leader, SeqSlot slot, int32_t num_tokens) {
  Group& group = groups_[leader];
  group.slots.push_back(slot);
  group.num_tokens += num_tokens;
  num_tokens_ += num_tokens;
  ++size_;
}

void Followers::Remove(RequestId leader, SeqSlot slot, int32_t num_tokens) {
  const auto it = groups_.find(leader);
  if (it == groups_.end() || std::erase(it->second.slots, slot) == 0) return;
  it->second.num_tokens -= num_tokens;
  num_tokens_ -= num_tokens;
  --size_;
  if (it->second.slots.empty()) groups_.erase(it);
}

std::vector<SeqSlot> Followers::Take(RequestId leader) {
  const auto it = groups_.find(leader);
  if (it == groups_.end()) return {};
  Group group = std::move(it->second);
  groups_.erase(it);
  num_tokens_ -= group.num_tokens;
  size_ -= static_cast<int32_t>(group.slots.size());
  return std::move(group.slots);
}

}  // namespace fastllm
