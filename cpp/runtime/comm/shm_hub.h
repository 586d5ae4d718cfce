// ShmHub: communicators of ranks that are processes of one node, over memory that they share.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "fastllm/status.h"
#include "runtime/comm/ranks.h"
#include "runtime/shm/shm_team.h"

namespace fastllm::runtime {

// The ranks of one node: as many on each, in their order.
struct NodeRanks {
  int32_t first = 0;
  int32_t count = 1;

  bool Has(int32_t rank) const { return rank >= first && rank < first + count; }
  bool HasAll(const std::vector<int32_t>& ranks) const;
};

// How the groups of a node lie in its shared memory; all its processes make the same one.
struct ShmHubPlan {
  ParallelSizes sizes;
  NodeRanks node;
  size_t message_bytes = size_t{1} << 20;  // on their way between two pipeline stages
  std::chrono::milliseconds timeout{60000};

  size_t Bytes() const;
};

// The communicators of the groups that are on the node as a whole; the others are left null. `memory` is aligned to 64
// bytes and holds zeros before the first use; `team` has the ranks of the node as its members, in order, this process
// among them. Both outlive the communicators. A rank that is waited for longer than the timeout breaks the team.
Ranks ShmRanksOf(const ShmHubPlan& plan, char* memory, ShmTeam* team);

}  // namespace fastllm::runtime
