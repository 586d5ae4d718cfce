// What EngineGroup keeps of a replica. All under the group's mutex.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>

#include "core/base/unique_fd.h"
#include "core/replicas/engine_group.h"

namespace fastllm {

struct EngineGroup::Life {
  Replica* replica = nullptr;
  uint64_t tag = 0;                             // the upper bits of its handles
  std::shared_ptr<Engine> engine;               // null once it has been given up
  std::unordered_map<uint64_t, uint64_t> live;  // outputs that have not ended: handle + index -> the engine's handle
  bool over = false;                            // its requests have been ended; its news is dropped
  UniqueFd stop;                                // an eventfd that ends the thread
  std::thread thread;
};

struct EngineGroup::Replica {
  int32_t number = 0;
  uint64_t lives = 0;  // so far
  std::shared_ptr<Life> life;
  ReplicaInfo info;                           // its stats are the counts of former lives
  int32_t failures = 0;                       // in a row
  std::chrono::steady_clock::time_point due;  // when it is to be made anew, if it is

  bool IsUp() const {
    return info.state == ReplicaState::kServing || info.state == ReplicaState::kDraining ||
           info.state == ReplicaState::kDrained;
  }
  // With the counts of former lives.
  EngineStats Stats() const;
};

// Adds all that can be added: counts and gauges, but what is of the newest step alone.
void AddStats(const EngineStats& more, EngineStats* sum);
// The same for what goes up from the start.
void AddCounts(const EngineStats& more, EngineStats* sum);

}  // namespace fastllm
