// Executor: runs StepPlans on one or many ranks. The only header of core/engine that runtime/ may include.
#pragma once

#include "core/step/step_plan.h"
#include "core/step/step_result.h"

namespace fastllm {

// Called from the engine thread alone. Plans run in the order of Submit; up to two may be in flight.
class Executor {
 public:
  virtual ~Executor() = default;

  // Hands a plan over and returns at once.
  virtual void Submit(StepPlan plan) = 0;

  // Blocks until the oldest plan in flight is done. Never throws: failures are in StepResult::status.
  virtual StepResult Wait() = 0;
};

}  // namespace fastllm
