// What the runners have in common at their start.
#pragma once

#include <chrono>

#include "fastllm/status.h"
#include "runtime/runner/batch_state.h"
#include "runtime/runner/runner_options.h"

namespace fastllm::runtime {

BatchLimits MakeBatchLimits(const ModelConfig& config, const RunnerOptions& options);

// kInvalidArgument names a value out of range, kUnimplemented KV groups that the runners do not have.
Status CheckRunnerOptions(const ModelConfig& config, const RunnerOptions& options);

// Adds the seconds since the last lap to `phases`, when there are any.
class PhaseTimer {
 public:
  explicit PhaseTimer(PhaseSeconds* phases) : phases_(phases) {}
  void Lap(const char* name) {
    const auto now = std::chrono::steady_clock::now();
    if (phases_ != nullptr) phases_->emplace_back(name, std::chrono::duration<double>(now - start_).count());
    start_ = now;
  }

 private:
  PhaseSeconds* phases_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace fastllm::runtime
