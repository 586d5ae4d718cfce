// Executor: runs StepPlans on one or many ranks. The only header of core/engine that runtime/ may include.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/step/step_plan.h"
#include "core/step/step_result.h"
#include "fastllm/status.h"

namespace fastllm {

// Called from the engine thread alone. Plans run in the order of Submit; as many may be in flight as
// Scheduler::max_in_flight() says.
class Executor {
 public:
  virtual ~Executor() = default;

  // Hands a plan over and returns at once. The plan is the caller's and stays as it is until Wait() has brought its
  // result.
  virtual void Submit(const StepPlan& plan) = 0;

  // Blocks until the oldest plan in flight is done; *result becomes its result, all members anew, and the memory that
  // *result holds may be used for that. Never throws: failures are in StepResult::status.
  virtual void Wait(StepResult* result) = 0;

  // Once, before the first plan: `failed` is called when the executor fails, also while nobody waits, from any thread
  // and until the executor goes. An executor that fails only within a step need not call it.
  virtual void WatchFailure(std::function<void(const Status& why)> failed);

  // The last call, when no plan comes any more: ends what runs outside this process. The rest goes with the executor.
  virtual void Close() {}

  // Frees device memory: level 1 keeps the weights in host memory, 2 drops them; the KV cache goes in both. No plan is
  // in flight, and none comes before Wake() has brought everything back. An error leaves all as it was.
  virtual Status Sleep(int32_t level);
  // Brings back what `tags` name, everything when there are none; true when nothing is missing any more.
  virtual Result<bool> Wake(const std::vector<std::string>& tags);
};

}  // namespace fastllm
