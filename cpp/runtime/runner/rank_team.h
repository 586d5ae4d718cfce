// RankTeam: a thread for each rank, for runners that are driven call by call. Tests and probes; serving has
// runtime/executor.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "fastllm/status.h"
#include "runtime/comm/memory_hub.h"

namespace fastllm::runtime {

// One caller at a time.
class RankTeam {
 public:
  RankTeam(std::unique_ptr<MemoryHub> hub, int32_t size);
  ~RankTeam();
  RankTeam(const RankTeam&) = delete;
  RankTeam& operator=(const RankTeam&) = delete;

  const MemoryHub& hub() const { return *hub_; }
  int32_t size() const { return size_; }

  // work(rank) on each rank's thread, side by side. The first error ends the waits of the others and is given back.
  // Must not throw.
  Status Run(const std::function<Status(int32_t rank)>& work);

 private:
  void Serve(int32_t rank);

  std::unique_ptr<MemoryHub> hub_;
  const int32_t size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<Status(int32_t)>* work_ = nullptr;
  uint64_t round_ = 0;
  int32_t running_ = 0;
  bool stop_ = false;
  Status first_error_;
  std::vector<std::thread> threads_;
};

}  // namespace fastllm::runtime
