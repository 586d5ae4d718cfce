#include "runtime/runner/step_runner.h"

#include <exception>
#include <string>

namespace fastllm::runtime {

void PendingStep::Finish() {
  if (tokens == nullptr) return;
  try {
    device->WaitEvent(event);
    for (size_t i = 0; i < result.rows.size(); ++i) result.rows[i].tokens.assign(1, tokens[i]);
  } catch (const std::exception& e) {
    result.rows.clear();
    result.status = Status::Internal(std::string("step failed: ") + e.what());
  }
}

}  // namespace fastllm::runtime
