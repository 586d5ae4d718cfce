// RankWorker: the life of a rank in a process of its own.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fastllm/status.h"
#include "runtime/comm/ranks.h"
#include "runtime/executor/rank_job.h"
#include "runtime/runner/runner_options.h"
#include "runtime/runner/step_runner.h"

namespace fastllm::runtime {

// Makes the runner of the job's rank, on the calling thread.
using JobRunnerFactory =
    std::function<Result<std::unique_ptr<StepRunner>>(const RankJob& job, const Ranks& ranks, PhaseSeconds* phases)>;

struct RankWorkerOptions {
  JobRunnerFactory make_runner;
  // The communicators that the node's memory does not give: of groups across nodes. Null: there are none.
  std::function<Status(const RankJob& job, Ranks* ranks)> join_groups;
};

// Runs the rank whose driver is at the other end of the socket, until the driver ends it; returns the status of the
// process. The process ends at once when the driver does, however that ends. A rank that fails says so and waits for
// its end. Once in a process, which has nothing else to do.
int ServeRank(int socket, const RankWorkerOptions& options);

}  // namespace fastllm::runtime
