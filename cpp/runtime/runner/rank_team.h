// RankTeam: a thread for each rank, for runners that are driven call by call. Tests and probes; serving has
// runtime/executor.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
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

  const MemoryHub& hub() const;
  int32_t size() const { return static_cast<int32_t>(threads_.size()); }

  // work(rank) on each rank's thread, side by side. The first error ends the waits of the others for each other and is
  // given back. Must not throw. kDeadlineExceeded names a rank that has not come back after `timeout`. One that does
  // not come back within `farewell` of the first error either, when nobody is to be waited for, is left behind, with
  // the copy of `work` that it has: what that refers to has to live as long. Later calls give the same error then. A
  // longer farewell is for work on its own that takes its time, and comes to an end.
  Status Run(std::function<Status(int32_t rank)> work, std::chrono::milliseconds timeout,
             std::chrono::milliseconds farewell = std::chrono::seconds(3));

  // Is told of communicators that the first error has to reach; for work on the ranks' threads.
  AnnounceFn announcer() const;

 private:
  struct Shared;
  static void Serve(const std::shared_ptr<Shared>& shared, int32_t rank);

  std::shared_ptr<Shared> shared_;
  std::vector<std::thread> threads_;
};

}  // namespace fastllm::runtime
