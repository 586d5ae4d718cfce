#include "core/engine/queue_limit.h"

#include <algorithm>
#include <string>

namespace fastllm {
namespace {

constexpr int64_t kNanosPerMilli = 1000000;
constexpr int64_t kUnknownMs = 1000;  // before anything has left the queue
constexpr int64_t kMostMs = 600000;
constexpr int64_t kMeanOver = 8;  // requests, roughly

int64_t Nanos(QueueLimit::Clock::duration d) { return std::chrono::duration_cast<std::chrono::nanoseconds>(d).count(); }

}  // namespace

void QueueLimit::Left(Clock::duration waited, Clock::time_point now) {
  const int64_t mean = mean_wait_ns_.load(std::memory_order_relaxed);
  const int64_t wait = Nanos(waited);
  last_left_ns_.store(Nanos(now.time_since_epoch()), std::memory_order_relaxed);
  // Behind it: who sees that something has left the queue sees when.
  mean_wait_ns_.store(mean < 0 ? wait : mean + (wait - mean) / kMeanOver, std::memory_order_release);
}

// As long as requests wait at present, and no shorter than nobody has left.
int64_t QueueLimit::RetryAfterMs() const {
  const int64_t mean = mean_wait_ns_.load(std::memory_order_acquire);
  if (mean < 0) return kUnknownMs;
  const int64_t silence = Nanos(Clock::now().time_since_epoch()) - last_left_ns_.load(std::memory_order_relaxed);
  return std::clamp<int64_t>(std::max(mean, silence) / kNanosPerMilli, 1, kMostMs);
}

Status QueueLimit::Check(int64_t num_tokens, int64_t more_reqs, int64_t more_tokens) const {
  const int64_t reqs = this->num_reqs() + more_reqs;
  const int64_t tokens = this->num_tokens() + more_tokens;
  std::string why;
  if (max_reqs_ > 0 && reqs >= max_reqs_) {
    why = std::to_string(reqs) + " requests wait, max_num_queued_reqs is " + std::to_string(max_reqs_);
  } else if (max_tokens_ > 0 && reqs > 0 && tokens + num_tokens > max_tokens_) {
    why = std::to_string(tokens) + " tokens wait and the request has " + std::to_string(num_tokens) +
          ", max_num_queued_tokens is " + std::to_string(max_tokens_);
  } else {
    return Status::Ok();
  }
  const int64_t ms = RetryAfterMs();
  return Status::ResourceExhausted("the queue is full: " + why + "; try again in about " + std::to_string(ms) + " ms")
      .WithRetryAfter(ms);
}

}  // namespace fastllm
