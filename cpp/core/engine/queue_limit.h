// QueueLimit: whether one more request may wait, and how long to stay away when not. The rule of max_num_queued_reqs
// and max_num_queued_tokens.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "fastllm/status.h"

namespace fastllm {

// The engine thread reports what waits with it; whoever accepts requests adds what waits with him. All members are
// atomic, so a report costs the engine thread a few stores and no lock.
class QueueLimit {
 public:
  using Clock = std::chrono::steady_clock;

  // 0: no limit. Tokens are those of prompts, and output of preempted requests.
  QueueLimit(int64_t max_reqs, int64_t max_tokens) : max_reqs_(max_reqs), max_tokens_(max_tokens) {}

  // Engine thread. What waits with it now.
  void Report(int64_t num_reqs, int64_t num_tokens) {
    num_reqs_.store(num_reqs, std::memory_order_relaxed);
    num_tokens_.store(num_tokens, std::memory_order_relaxed);
  }
  // Engine thread. A request left the queue for its first step at `now` after so long.
  void Left(Clock::duration waited, Clock::time_point now);

  int64_t num_reqs() const { return num_reqs_.load(std::memory_order_relaxed); }
  int64_t num_tokens() const { return num_tokens_.load(std::memory_order_relaxed); }

  // Any thread. Whether a request of num_tokens may join these and the `more` that the caller holds; kResourceExhausted
  // with the value, the limit and retry_after_ms() if not. A queue without requests takes one of any length, because to
  // try again would not help that.
  Status Check(int64_t num_tokens, int64_t more_reqs, int64_t more_tokens) const;

 private:
  int64_t RetryAfterMs() const;

  const int64_t max_reqs_;
  const int64_t max_tokens_;
  std::atomic<int64_t> num_reqs_{0};
  std::atomic<int64_t> num_tokens_{0};
  std::atomic<int64_t> mean_wait_ns_{-1};  // of the requests that left lately; -1: none did
  std::atomic<int64_t> last_left_ns_{0};   // on the clock
};

}  // namespace fastllm
