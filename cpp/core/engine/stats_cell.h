// StatsCell: an EngineStats that one thread writes and any thread reads, neither ever blocking the other.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "fastllm/engine.h"

namespace fastllm {

// A sequence lock: version_ is odd during a write, and a reader whose version changed reads again. The fields are
// atomics with release/acquire order, so a reader that meets a new value also meets the version that announced it.
class StatsCell {
 public:
  // One writer thread.
  void Store(const EngineStats& s) {
    const auto words = std::bit_cast<Words>(s);
    const uint64_t version = version_.load(std::memory_order_relaxed);
    version_.store(version + 1, std::memory_order_relaxed);
    for (size_t i = 0; i < words.size(); ++i) fields_[i].store(words[i], std::memory_order_release);
    version_.store(version + 2, std::memory_order_release);
  }

  // Any thread.
  EngineStats Load() const {
    Words words;
    uint64_t before = 0, after = 1;
    while (before != after || before % 2 != 0) {
      before = version_.load(std::memory_order_acquire);
      for (size_t i = 0; i < words.size(); ++i) words[i] = fields_[i].load(std::memory_order_acquire);
      after = version_.load(std::memory_order_relaxed);
    }
    return std::bit_cast<EngineStats>(words);
  }

 private:
  static_assert(std::has_unique_object_representations_v<EngineStats>,
                "EngineStats is int64_t fields and nothing else");
  using Words = std::array<int64_t, sizeof(EngineStats) / sizeof(int64_t)>;

  std::atomic<uint64_t> version_{0};
  std::array<std::atomic<int64_t>, std::tuple_size_v<Words>> fields_ = {};
};

}  // namespace fastllm
