// Heartbeat: a sign of life of the engine thread that any thread can read.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace fastllm {

// The engine thread beats once per round and says when it goes to sleep for want of work. Two relaxed stores per beat.
class Heartbeat {
 public:
  using Clock = std::chrono::steady_clock;

  // Engine thread.
  void Beat(Clock::time_point now) {
    last_.store(now.time_since_epoch().count(), std::memory_order_relaxed);
    count_.fetch_add(1, std::memory_order_relaxed);
    busy_.store(true, std::memory_order_release);
  }
  void Rest() { busy_.store(false, std::memory_order_release); }

  // Any thread.
  int64_t count() const { return count_.load(std::memory_order_relaxed); }
  // Since the last beat; zero while the thread rests.
  Clock::duration SinceLast(Clock::time_point now) const {
    if (!busy_.load(std::memory_order_acquire)) return {};
    return now - Clock::time_point(Clock::duration(last_.load(std::memory_order_relaxed)));
  }

 private:
  std::atomic<int64_t> count_{0};
  std::atomic<Clock::rep> last_{0};
  std::atomic<bool> busy_{false};
};

}  // namespace fastllm
