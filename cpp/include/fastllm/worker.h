// The programs beside an engine with EngineConfig's distributed_executor_backend "processes" or "ray": of a rank, and
// of a node that is not the engine's.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "fastllm/config.h"
#include "fastllm/export.h"
#include "fastllm/status.h"

namespace fastllm {

// Process groups of c10d (torch.distributed) that a rank has to make with ranks of other nodes.
struct GroupRequest {
  int32_t rank = 0;
  int32_t world = 1;
  std::string store_host;  // of the TCPStore
  int32_t store_port = 0;
  std::string interface_address;  // of this node, towards the others
  int64_t timeout_ms = 0;
  std::vector<std::vector<int32_t>> groups;  // all of them, in an order that is every rank's
};
// The names under which the groups are registered, for each; of those that the rank is not in, whatever. Throws.
using GroupMaker = std::function<std::vector<std::string>(const GroupRequest&)>;

// Runs one rank of the engine whose process is at the other end of the socket, which is a descriptor that the engine
// leaves to the programs it starts: 3. Returns the exit status when the engine ends, and ends the process when the
// engine's does. For a process that has nothing else to do. Without `make_groups` ranks are on one node.
FASTLLM_API int RunWorker(int socket, const GroupMaker& make_groups = nullptr);

// Runs the ranks of node `node_rank` for the engine of node 0, at master_addr and master_port, until that ends. An
// error when it does not come within distributed_timeout_seconds, or fails and restart_failed_engine is not set.
FASTLLM_API Status RunNode(const EngineConfig& config);

}  // namespace fastllm
