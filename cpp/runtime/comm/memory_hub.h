// MemoryHub: communicators of ranks that are threads of one process, over their own memory.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "fastllm/status.h"
#include "runtime/comm/ranks.h"

namespace fastllm::runtime {

// The communicators keep alive what they share. Any thread, but for what Communicator says.
class MemoryHub {
 public:
  // A rank that is waited for longer than `timeout` inside a call breaks all groups of the hub. As RankTopology for
  // the sizes; data parallel replicas share nothing, so `data` must be 1.
  static Result<std::unique_ptr<MemoryHub>> Create(const ParallelSizes& sizes, std::chrono::milliseconds timeout);
  ~MemoryHub();

  Ranks RanksOf(int32_t rank) const;

  // For waits that begin later.
  void SetTimeout(std::chrono::milliseconds timeout);

  // Communicator::Abort() on all groups.
  void Abort(const Status& why);
  // Why a group is broken, or ok.
  Status broken() const;

  // Of a rank that does not go on: whom it waits for, and whom that one waits for, to the one that waits for nobody.
  int32_t Culprit(int32_t rank) const;

 private:
  struct Impl;
  explicit MemoryHub(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace fastllm::runtime
