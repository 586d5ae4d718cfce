// NodeMemory: what the ranks of one node and their driver share: the team, plans for all, results of each, and the
// groups of the ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/comm/shm_hub.h"
#include "runtime/shm/byte_ring.h"
#include "runtime/shm/shared_memory.h"
#include "runtime/shm/shm_team.h"

namespace fastllm::runtime {

// How it lies; all processes of the node have the same one.
struct NodeMemoryPlan {
  ShmHubPlan hub;
  size_t plan_bytes = size_t{1} << 20;      // room of the ring of plans
  size_t result_bytes = size_t{256} << 10;  // of each rank's ring of results

  int32_t driver() const { return hub.node.count; }  // its number in the team; ranks come first
  size_t Bytes() const;
};

// One process's view. Holds its place in memory: ShmTeam and the communicators point into it.
class NodeMemory {
 public:
  // self: the number in the team.
  NodeMemory(SharedMemory memory, const NodeMemoryPlan& plan, int32_t self);
  NodeMemory(const NodeMemory&) = delete;
  NodeMemory& operator=(const NodeMemory&) = delete;

  const NodeMemoryPlan& plan() const { return plan_; }
  int fd() const { return memory_.fd(); }
  ShmTeam& team() { return team_; }
  ByteRing& plans() { return plans_; }
  ByteRing& results(int32_t member) { return results_[static_cast<size_t>(member)]; }
  // Of this process, which is a rank.
  Ranks MakeRanks();

 private:
  SharedMemory memory_;
  NodeMemoryPlan plan_;
  ShmTeam team_;
  ByteRing plans_;
  std::vector<ByteRing> results_;
};

}  // namespace fastllm::runtime
