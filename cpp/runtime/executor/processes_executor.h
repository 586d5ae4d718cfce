// ProcessesExecutor: the ranks of one replica as processes, each with its share of the model and nothing of the
// others'.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/engine/executor.h"
#include "fastllm/status.h"
#include "runtime/comm/topology.h"
#include "runtime/runner/runner_options.h"

namespace fastllm::runtime {

// Where the other nodes are; with one node they mean nothing.
struct RankNodes {
  int32_t count = 1;  // of nodes with ranks, as many on each
  bool here = true;   // this process's node is the first of them; else all come from elsewhere
  std::string master_addr;
  int32_t master_port = 0;
  std::string token;  // which the agents of the other nodes must have; empty: must not have one
  // Told of connections to the port that are turned away: from where, and why.
  std::function<void(const std::string& why)> on_refused;
};

struct RankProcessesOptions {
  ParallelSizes sizes;
  // How long a rank may be waited for: by another inside a step, and by Wait() while no rank gets a step done.
  std::chrono::milliseconds timeout{300000};
  std::vector<std::string> command;  // starts the program of a rank, which calls ServeRank() with its descriptor 3
  std::string engine;                // what that is told of the engine: RankJob::engine
  int32_t num_threads = 1;           // of all ranks of this node together: each gets an equal part, at least one
  RankNodes nodes;
  size_t message_bytes = size_t{1} << 20;  // on their way between two pipeline stages
};

// Waits for the agents of the other nodes (node_agent.h), starts the processes and waits until all have loaded. Phases
// are those of rank 0. In flight: as many steps as there are pipeline stages, and one more.
//
// A rank that fails, ends or is not heard of in time ends them all: Wait() gives an error that names it, at once and
// from then on, and WatchFailure() is told even when nobody waits. No process outlives the executor, and none outlives
// this process, however it ends.
Result<std::unique_ptr<Executor>> MakeProcessesExecutor(const RankProcessesOptions& options, PhaseSeconds* phases);

}  // namespace fastllm::runtime
