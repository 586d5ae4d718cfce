#include "runtime/runner/step_runner.h"

#include <exception>
#include <string>
#include <utility>

namespace fastllm::runtime {

StepResult PendingStep::Finish() {
  if (event == nullptr) return std::move(result);
  try {
    device->WaitEvent(event);
    for (size_t i = 0; i < result.rows.size(); ++i) result.rows[i].tokens.assign(1, tokens[i]);
  } catch (const std::exception& e) {
    result.rows.clear();
    result.status = Status::Internal(std::string("step failed: ") + e.what());
  }
  return std::move(result);
}

}  // namespace fastllm::runtime
