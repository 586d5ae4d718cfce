// NodeAgent: what a node other than the driver's does: runs its ranks and carries what is said to and by them.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "fastllm/status.h"

namespace fastllm::runtime {

struct NodeAgentOptions {
  std::string master_addr;
  int32_t master_port = 0;
  int32_t node = 0;                            // its number
  std::string token;                           // the driver's
  int32_t num_threads = 0;                     // of all its ranks together; 0: what the driver's node has
  std::vector<std::string> command;            // RankProcessesOptions::command
  std::chrono::milliseconds patience{300000};  // for the driver to listen
  bool come_again = false;                     // serve the next engine when one has failed
};

// Until the engine ends in order; an error when the driver does not come, refuses the node, or has failed or gone and
// the agent does not come again. No rank is left in any case.
Status RunNodeAgent(const NodeAgentOptions& options);

}  // namespace fastllm::runtime
