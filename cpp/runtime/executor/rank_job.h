// RankJob: what the process of a rank is told when it starts, and how.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "core/base/unique_fd.h"
#include "fastllm/status.h"
#include "runtime/executor/node_memory.h"

namespace fastllm::runtime {

struct RankJob {
  int32_t rank = 0;
  NodeMemoryPlan memory;
  std::string engine;        // how a runner is made: the business of who makes it
  int32_t num_threads = 1;   // of this rank
  std::string group_prefix;  // of the names of groups across nodes; empty: there are none
  std::string store_host;    // where these find each other
  int32_t store_port = 0;
  std::string interface_address;  // of this node, towards the others

  int32_t member() const { return rank - memory.hub.node.first; }
};

// The job and the descriptor of the node's memory, through a Unix socket whose end means the end of the process.
Status SendJob(int socket, const RankJob& job, int memory_fd);
// kUnavailable when the sender has gone.
Result<std::pair<RankJob, UniqueFd>> ReceiveJob(int socket);

// As text, for other ways.
std::string ToJson(const RankJob& job);
Result<RankJob> RankJobFromJson(std::string_view text);

}  // namespace fastllm::runtime
