// RequestTimer: when the stations of one request's life were reached, and RequestMetrics of them.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "fastllm/output.h"

namespace fastllm {

// Plain arithmetic on times that the caller reads, so that a step reads the clock once for all its requests.
class RequestTimer {
 public:
  using Clock = std::chrono::steady_clock;
  using Time = Clock::time_point;

  RequestTimer() = default;
  // arrival_ns: on the steady clock; 0: unknown, so `queued`.
  RequestTimer(int64_t arrival_ns, Time queued);

  // The first time, and once more after each preemption. How long it was queued, the first time.
  std::optional<Clock::duration> Scheduled(Time now);
  void Tokens(int32_t count, Time now);  // that came with one step
  RequestMetrics Finish(Time now) const;

 private:
  Time arrival_, queued_, scheduled_, first_token_, last_token_;  // the epoch: never
  Clock::duration min_gap_ = Clock::duration::max();
  Clock::duration max_gap_ = Clock::duration::zero();
  int32_t num_tokens_ = 0;
  int32_t num_scheduled_ = 0;
};

}  // namespace fastllm
