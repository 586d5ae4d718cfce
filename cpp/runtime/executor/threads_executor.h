// ThreadsExecutor: the ranks of one replica as threads of this process, each with a model runner of its own.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>

#include "core/engine/executor.h"
#include "fastllm/status.h"
#include "runtime/comm/ranks.h"
#include "runtime/comm/topology.h"
#include "runtime/models/model_config.h"
#include "runtime/runner/runner_options.h"
#include "runtime/runner/step_runner.h"

namespace fastllm::runtime {

// Makes the runner of one rank, on that rank's thread; options.ranks says which.
using RankRunnerFactory =
    std::function<Result<std::unique_ptr<StepRunner>>(ModelSource, const RunnerOptions&, PhaseSeconds*)>;

struct RankThreadsOptions {
  ParallelSizes sizes;
  // How long a rank may be waited for: by another inside a step, and by Wait() while no rank gets a step done.
  std::chrono::milliseconds timeout{300000};
  RankRunnerFactory make_runner;  // null: MakeStepRunner()
  // Called on each rank's thread before its runner is made: may put communicators of devices in place of those in
  // memory, which it can use to meet the other ranks (and which Ranks::host keeps). Those that it puts there are
  // aborted when a rank fails and when the executor ends, and before it has come back those that it announces. Those
  // that are in there while nobody has announced anything or come back for 3 start_timeout() and 2 s are named, all but
  // such as wait for others in memory. Null: does nothing.
  std::function<Status(Ranks*, const AnnounceFn& announce)> join = nullptr;
  // Joining and loading are not steps: a wait for another rank there may take as long as this, also with a shorter
  // timeout.
  std::chrono::milliseconds least_start{60000};

  // For each wait of the start.
  std::chrono::milliseconds start_timeout() const { return std::max(timeout, least_start); }
};

// Loads every rank's share of the model and starts the threads. options.num_threads is what all ranks have together:
// each gets an equal part, at least one. options.size_kv is asked once, with the memory of the rank that has least.
// Phases are those of rank 0. In flight: as many steps as there are pipeline stages, and one more.
//
// When a rank fails, throws or is not heard of in time, Wait() gives an error that names it, at once and from then on,
// and the other ranks stop; while they start, this call gives it. A thread that never comes back is left behind with
// all that it uses when the executor goes; one that still loads is waited for as long as any, start_timeout().
Result<std::unique_ptr<Executor>> MakeThreadsExecutor(ModelSource source, const RunnerOptions& options,
                                                      const RankThreadsOptions& threads, PhaseSeconds* phases);

}  // namespace fastllm::runtime
