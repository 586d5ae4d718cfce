// Control: what a host asks of the engine thread that is not about one request. The host waits for the answer.
#pragma once

#include <cstdint>
#include <future>
#include <string>
#include <vector>

#include "fastllm/engine.h"
#include "fastllm/status.h"

namespace fastllm {

struct Control {
  enum class Kind : uint8_t { kPause, kResume, kSleep, kWake, kResetPrefixCache, kDrain };

  Kind kind = Kind::kPause;
  PauseMode mode = PauseMode::kAbort;  // kPause
  int32_t level = 1;                   // kSleep
  std::vector<std::string> tags;       // kWake
  std::promise<Status> done;           // the engine thread answers each exactly once
};

}  // namespace fastllm
