#include "runtime/executor/node_memory.h"

#include <numeric>
#include <utility>

namespace fastllm::runtime {
namespace {

size_t PlansAt(const NodeMemoryPlan& plan) { return sizeof(ShmTeamState) + plan.hub.Bytes(); }

size_t ResultsAt(const NodeMemoryPlan& plan, int32_t member) {
  return PlansAt(plan) + ByteRing::Bytes(static_cast<size_t>(plan.hub.node.count), plan.plan_bytes) +
         static_cast<size_t>(member) * ByteRing::Bytes(1, plan.result_bytes);
}

std::vector<int32_t> AllRanks(const NodeMemoryPlan& plan) {
  std::vector<int32_t> members(static_cast<size_t>(plan.hub.node.count));
  std::iota(members.begin(), members.end(), 0);
  return members;
}

}  // namespace

size_t NodeMemoryPlan::Bytes() const { return ResultsAt(*this, hub.node.count); }

NodeMemory::NodeMemory(SharedMemory memory, const NodeMemoryPlan& plan, int32_t self)
    : memory_(std::move(memory)),
      plan_(plan),
      team_(reinterpret_cast<ShmTeamState*>(memory_.data()), plan.driver() + 1, self),
      plans_(memory_.data() + PlansAt(plan), plan.plan_bytes, &team_, plan.driver(), AllRanks(plan)) {
  for (int32_t member = 0; member < plan.hub.node.count; ++member) {
    results_.emplace_back(memory_.data() + ResultsAt(plan, member), plan.result_bytes, &team_, member,
                          std::vector<int32_t>{plan.driver()});
  }
}

Ranks NodeMemory::MakeRanks() { return ShmRanksOf(plan_.hub, memory_.data() + sizeof(ShmTeamState), &team_); }

}  // namespace fastllm::runtime
