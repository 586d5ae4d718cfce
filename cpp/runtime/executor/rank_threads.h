// RankThreads: what the threads of a ThreadsExecutor share, and the life of each. Only for its sources.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "core/step/step_plan.h"
#include "runtime/comm/memory_hub.h"
#include "runtime/executor/size_kv_once.h"
#include "runtime/executor/threads_executor.h"

namespace fastllm::runtime {

// Shared, so that a thread which never comes back finds it still there.
struct RankThreads {
  // A plan on its way through the ranks: plan i is in slot i mod their number.
  struct Slot {
    StepPlan plan;
    std::vector<SampledId> learned;  // by the stages that do not sample, before this plan
    std::vector<PendingStep> steps;  // of each rank
  };
  struct Rank {
    uint64_t done = 0;  // plans that it has launched
    bool joined = false;
    bool loaded = false;
    bool ended = false;
  };

  RankThreads(std::unique_ptr<MemoryHub> hub_of_all, size_t num_slots, int32_t world);

  // The first failure stays, and wakes everybody. A message that does not name a rank gets this one's name.
  void Fail(const RankTopology& topology, const Status& why);
  // Ends the waits of ranks for each other; on devices alone.
  void Abort(const Status& why);
  void AbortDevices(const Status& why);
  // A communicator that an abort has to reach, also one that came before it: why, then.
  Status Announce(const std::shared_ptr<Communicator>& communicator);
  // `join`, on a rank's thread.
  Status Join(Ranks* own);
  Status Failure();

  // Mutex held.
  uint64_t NumDone() const;
  uint64_t Progress() const;
  size_t JoinProgress() const;
  bool All(bool Rank::*flag) const;
  bool AnyLoads() const;  // ranks that load on their own, and so come to an end

  std::unique_ptr<MemoryHub> hub;
  std::unique_ptr<SizeKvOnce> size_kv;
  std::function<Status(Ranks*, const AnnounceFn&)> join;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::shared_ptr<Communicator>> joined;
  Status aborted;
  PhaseSeconds phases;  // of rank 0, until all have loaded
  std::vector<Slot> slots;
  std::vector<Rank> ranks;
  uint64_t submitted = 0;
  Status failure;
  std::thread::id judge;  // the thread that looks for the rank to blame, if one does
  bool stop = false;
};

// One rank, on its thread.
class RankLife {
 public:
  RankLife(std::shared_ptr<RankThreads> shared, RankRunnerFactory make_runner, RunnerOptions options)
      : shared_(std::move(shared)), make_runner_(std::move(make_runner)), options_(std::move(options)) {}

  void Run(ModelSource source);

 private:
  const RankTopology& topology() const { return options_.ranks.topology; }
  RankThreads::Rank& own() const { return shared_->ranks[topology().rank]; }
  void Live(ModelSource source);
  void Loop(StepRunner& runner);

  std::shared_ptr<RankThreads> shared_;
  RankRunnerFactory make_runner_;
  RunnerOptions options_;
};

}  // namespace fastllm::runtime
