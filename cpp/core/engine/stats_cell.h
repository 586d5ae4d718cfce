// StatsCell: an EngineStats that one thread writes and any thread reads, neither ever blocking the other.
#pragma once

#include <atomic>
#include <cstdint>

#include "fastllm/engine.h"

namespace fastllm {

// A sequence lock: version_ is odd during a write, and a reader whose version changed reads again. The fields are
// atomics with release/acquire order, so a reader that meets a new value also meets the version that announced it.
class StatsCell {
 public:
  // One writer thread.
  void Store(const EngineStats& s) {
    const int64_t fields[kNumFields] = {s.steps,
                                        s.running,
                                        s.waiting,
                                        s.used_blocks,
                                        s.preemptions,
                                        s.prefix_query_tokens,
                                        s.prefix_hit_tokens,
                                        s.scheduled_tokens,
                                        s.finished_requests};
    const uint64_t version = version_.load(std::memory_order_relaxed);
    version_.store(version + 1, std::memory_order_relaxed);
    for (int i = 0; i < kNumFields; ++i) fields_[i].store(fields[i], std::memory_order_release);
    version_.store(version + 2, std::memory_order_release);
  }

  // Any thread.
  EngineStats Load() const {
    int64_t f[kNumFields];
    uint64_t before = 0, after = 1;
    while (before != after || before % 2 != 0) {
      before = version_.load(std::memory_order_acquire);
      for (int i = 0; i < kNumFields; ++i) f[i] = fields_[i].load(std::memory_order_acquire);
      after = version_.load(std::memory_order_relaxed);
    }
    EngineStats s;
    s.steps = f[0];
    s.running = static_cast<int32_t>(f[1]);
    s.waiting = static_cast<int32_t>(f[2]);
    s.used_blocks = static_cast<int32_t>(f[3]);
    s.preemptions = f[4];
    s.prefix_query_tokens = f[5];
    s.prefix_hit_tokens = f[6];
    s.scheduled_tokens = f[7];
    s.finished_requests = f[8];
    return s;
  }

 private:
  static constexpr int kNumFields = 9;
  std::atomic<uint64_t> version_{0};
  std::atomic<int64_t> fields_[kNumFields] = {};
};

}  // namespace fastllm
