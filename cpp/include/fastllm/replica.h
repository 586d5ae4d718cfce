// Replicas: the engines behind one handle with EngineConfig's data_parallel_size. Plain data.
#pragma once

#include <cstdint>
#include <string>

#include "fastllm/engine_stats.h"
#include "fastllm/export.h"

namespace fastllm {

enum class ReplicaState : uint8_t {
  kServing = 0,  // takes requests
  kDraining,     // takes none, and some still run
  kDrained,      // takes none
  kFailed,       // died or stood still; it is made anew
  kRestarting,   // is made anew because that was asked for
};

// "serving", "draining", "drained", "failed", "restarting".
FASTLLM_API const char* ReplicaStateName(ReplicaState state);

struct ReplicaInfo {
  ReplicaState state = ReplicaState::kServing;
  std::string reason;         // of the last failure; "" when there was none
  EngineStats stats;          // counts go on over restarts
  int64_t live = 0;           // outputs that were sent to it and have not ended
  int64_t requests = 0;       // that were sent to it
  int64_t routed_prefix = 0;  // of these, because of their prefix
  int64_t routed_session = 0;
  int64_t restarts = 0;
};

}  // namespace fastllm
