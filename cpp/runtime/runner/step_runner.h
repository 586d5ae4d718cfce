// StepRunner: what an executor drives. A step is launched by one thread and finished by another, so that the next one
// is prepared while it runs.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/ids.h"
#include "core/step/step_plan.h"
#include "core/step/step_result.h"
#include "fastllm/output.h"
#include "fastllm/status.h"
#include "ops/contract/device.h"
#include "runtime/models/model_config.h"

namespace fastllm::runtime {

// Log probabilities of drawn tokens as a device leaves them, page-locked.
struct DrawnLogprobs {
  std::vector<int32_t> num_top;  // by row of the result; -1: not asked
  const float* token = nullptr;  // [rows]
  const int32_t* ranks = nullptr;
  const int32_t* top_ids = nullptr;  // [rows, stride]
  const float* top = nullptr;
  int32_t stride = 0;

  // Of row i, whose token is `id`.
  PositionLogprobs Of(size_t i, TokenId id) const;
};

// A step on its way. The result is whole at once on the CPU; on a device its tokens arrive with the event.
struct PendingStep {
  StepResult result;
  const ops::DeviceApi* device = nullptr;
  void* event = nullptr;                    // of the device, whose handle may be null
  const int32_t* tokens = nullptr;          // page-locked, one for each row of the result; null: nothing to wait for
  const DrawnLogprobs* logprobs = nullptr;  // as long as tokens; null: none asked

  // Waits for the tokens and puts them, and their logprobs, into the result. Any thread, once, and before the second
  // launch after this one's next. Never throws: failures are in the result's status.
  void Finish();
};

class StepRunner {
 public:
  virtual ~StepRunner() = default;

  // Starts a plan; plans run in the order of their launches. *step is made anew, with what memory it holds. Never
  // throws: failures are in the result's status.
  virtual void Launch(const StepPlan& plan, PendingStep* step) = 0;

  // Runs a plan and appends the logits of all its tokens, [total_tokens, vocab], to `logits` instead of sampling; the
  // rows must not sample, or their sequences end with this step.
  virtual Status ExecuteForLogits(const StepPlan& plan, std::vector<float>* logits) = 0;

  virtual const ModelConfig& config() const = 0;
};

}  // namespace fastllm::runtime
