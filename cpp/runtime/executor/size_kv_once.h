// SizeKvOnce: one KV cache size for all ranks.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>

#include "core/config/resolved.h"
#include "fastllm/status.h"
#include "runtime/runner/device_memory.h"

namespace fastllm::runtime {

// Every rank asks; when all have, the one with the least free memory decides for all. Break() ends the wait.
class SizeKvOnce {
 public:
  using SizeKv = std::function<Result<KvConfig>(const DeviceMemoryUse&)>;

  SizeKvOnce(int32_t num_ranks, SizeKv size_kv) : missing_(num_ranks), size_kv_(std::move(size_kv)) {}

  Result<KvConfig> Ask(const DeviceMemoryUse& use) {
    std::unique_lock lock(mutex_);
    if (!least_ || use.free_bytes < least_->free_bytes) least_ = use;
    if (--missing_ == 0 && !answer_) {
      answer_ = size_kv_(*least_);
      changed_.notify_all();
    }
    changed_.wait(lock, [this] { return answer_.has_value(); });
    return *answer_;
  }

  void Break(const Status& why) {
    const std::lock_guard lock(mutex_);
    if (!answer_) answer_ = why;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int32_t missing_;
  SizeKv size_kv_;
  std::optional<DeviceMemoryUse> least_;
  std::optional<Result<KvConfig>> answer_;
};

}  // namespace fastllm::runtime
