// Control: what a host asks of the engine thread that is not about one request. The host waits for the answer.
#pragma once

#include <cstdint>
#include <future>
#include <string>
#include <vector>

#include "core/base/ids.h"
#include "fastllm/engine.h"
#include "fastllm/extra_keys.h"
#include "fastllm/status.h"

namespace fastllm {

// A prefix of tokens that kCountCached and kPin ask about.
struct PrefixQuery {
  std::vector<TokenId> tokens;
  ExtraKeys keys;
  int32_t priority = 0;  // kPin
  int64_t ttl_ms = 0;    // kPin
};

struct Control {
  enum class Kind : uint8_t { kPause, kResume, kSleep, kWake, kResetPrefixCache, kDrain, kCountCached, kPin, kFailed };

  Kind kind = Kind::kPause;
  PauseMode mode = PauseMode::kAbort;    // kPause
  int32_t level = 1;                     // kSleep
  std::vector<std::string> tags;         // kWake
  PrefixQuery prefix;                    // kCountCached, kPin
  Status why;                            // kFailed: of the executor, which nobody waits for
  std::promise<Result<int32_t>> answer;  // the engine thread gives each exactly one: tokens for the last two, else 0

  void Done(const Status& status) { answer.set_value(status.ok() ? Result<int32_t>(0) : Result<int32_t>(status)); }
};

}  // namespace fastllm
