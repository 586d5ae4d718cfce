// EngineLoop: the body of the engine thread. Owns scheduler, executor and text state; nobody else touches them.
#pragma once

#include <deque>
#include <memory>
#include <string>

#include "core/engine/executor.h"
#include "core/engine/inbox.h"
#include "core/engine/outbox.h"
#include "core/engine/output_router.h"
#include "core/engine/stats_cell.h"
#include "core/sched/scheduler.h"

namespace fastllm {

// Submitting a step and taking its result are apart, so that more than one may be in flight; how many is kMaxInFlight.
class EngineLoop {
 public:
  // Inbox, outbox and stats outlive the loop.
  EngineLoop(const SchedConfig& sched, const KvConfig& kv, std::unique_ptr<Executor> executor,
             std::shared_ptr<const TokenTable> tokens, Inbox* inbox, Outbox* outbox, StatsCell* stats);

  // Returns when the inbox is closed, or after a failure that has poisoned the engine; never throws. By then every
  // request that was accepted has its last delta in the outbox and the outbox is closed.
  void Run() noexcept;

 private:
  static constexpr size_t kMaxInFlight = 1;

  void Loop();
  bool DrainInbox();    // false: the inbox is closed
  bool SubmitStep();    // false: there is nothing to run
  void CompleteStep();  // waits for the oldest step in flight
  void Apply(const StepPlan& plan, const StepResult& result);
  void Publish();
  void Poison(const std::string& why) noexcept;

  Scheduler scheduler_;
  std::unique_ptr<Executor> executor_;
  OutputRouter router_;
  std::deque<StepPlan> in_flight_;
  int64_t num_steps_ = 0;
  Inbox* inbox_;
  Outbox* outbox_;
  StatsCell* stats_;
};

}  // namespace fastllm
