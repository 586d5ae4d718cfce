// Bell: what a process sleeps on until another rings. In shared memory, so zeros are a bell.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace fastllm::runtime {

using ShmDeadline = std::chrono::steady_clock::time_point;
inline constexpr ShmDeadline kNoDeadline = ShmDeadline::max();

// A futex. Any process that maps it, any thread.
struct Bell {
  std::atomic<uint32_t> rings{0};
  std::atomic<uint32_t> sleepers{0};  // counts one that was killed asleep for ever: a call too many for each ring

  // Wakes all that sleep.
  void Ring();
  // Returns at the next ring after `seen` of them, or false at the deadline; may return true for no reason.
  bool Sleep(uint32_t seen, ShmDeadline deadline);

  // Waits until done(), which what the ringers write before they ring makes true. The first `spins` looks do not sleep:
  // processes that each have a core meet within microseconds. False: done() is not true at the deadline.
  template <typename Done>
  bool Await(const Done& done, int32_t spins, ShmDeadline deadline) {
    for (int32_t spin = 0; spin < spins; ++spin) {
      if (done()) return true;
      Pause();
    }
    for (;;) {
      const uint32_t seen = rings.load(std::memory_order_seq_cst);
      if (done()) return true;
      if (!Sleep(seen, deadline)) return done();
    }
  }

 private:
  static void Pause() {
#if defined(__x86_64__) || defined(_M_X64)
    __builtin_ia32_pause();
#else
    std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
  }
};

}  // namespace fastllm::runtime
