// StepRunner: what an executor drives. A step is launched by one thread and finished by another, so that the next one
// is prepared while it runs.
#pragma once

#include <cstdint>
#include <vector>

#include "core/step/step_plan.h"
#include "core/step/step_result.h"
#include "fastllm/status.h"
#include "ops/contract/device.h"
#include "runtime/models/model_config.h"

namespace fastllm::runtime {

// A step on its way. The result is whole at once on the CPU; on a device its tokens arrive with the event.
struct PendingStep {
  StepResult result;
  const ops::DeviceApi* device = nullptr;
  void* event = nullptr;            // null: nothing to wait for
  const int32_t* tokens = nullptr;  // page-locked, one for each row of the result

  // Waits for the tokens. Any thread, once, and before the second launch after this one's next. Never throws.
  StepResult Finish();
};

class StepRunner {
 public:
  virtual ~StepRunner() = default;

  // Starts a plan; plans run in the order of their launches. Never throws: failures are in the result's status.
  virtual PendingStep Launch(const StepPlan& plan) = 0;

  // Runs a plan and appends the logits of all its tokens, [total_tokens, vocab], to `logits` instead of sampling; the
  // rows must not sample, or their sequences end with this step.
  virtual Status ExecuteForLogits(const StepPlan& plan, std::vector<float>* logits) = 0;

  virtual const ModelConfig& config() const = 0;
};

}  // namespace fastllm::runtime
