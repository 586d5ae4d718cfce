#include "core/engine/executor.h"

namespace fastllm {

// NOLINTNEXTLINE(performance-unnecessary-value-param): those that watch keep it.
void Executor::WatchFailure(std::function<void(const Status& why)> /*failed*/) {}

Status Executor::Sleep(int32_t /*level*/) { return Status::Unimplemented("this executor cannot sleep"); }

Result<bool> Executor::Wake(const std::vector<std::string>& /*tags*/) {
  return Status::Unimplemented("this executor cannot sleep");
}

}  // namespace fastllm
