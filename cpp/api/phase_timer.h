// PhaseTimer: the seconds of each start-up phase, in order.
#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace fastllm::api {

class PhaseTimer {
 public:
  using Phases = std::vector<std::pair<std::string, double>>;

  // Closes a phase that began at the previous Lap (or at construction).
  void Lap(const char* name) {
    const auto now = Clock::now();
    phases_.emplace_back(name, std::chrono::duration<double>(now - last_).count());
    last_ = now;
  }
  // The time since the last Lap is accounted for by phases that a callee added.
  void Skip() { last_ = Clock::now(); }
  Phases* phases() { return &phases_; }
  // All phases and a last one, "total", from construction to now.
  Phases Finish() {
    phases_.emplace_back("total", std::chrono::duration<double>(Clock::now() - start_).count());
    return std::move(phases_);
  }

 private:
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point last_ = start_;
  Phases phases_;
};

}  // namespace fastllm::api
