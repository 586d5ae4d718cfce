// Checks of what a request asks of the scheduler and of the prefix cache.
#pragma once

#include <cstdint>

#include "core/request/validate.h"
#include "fastllm/engine.h"
#include "fastllm/extra_keys.h"
#include "fastllm/status.h"

namespace fastllm {

inline constexpr int64_t kMaxTimeLimitMs = int64_t{365} * 24 * 3600 * 1000;

// kInvalidArgument that names the value and the limit: a priority other than 0 where the policy ignores them, a time
// limit that is negative or beyond a year, extra keys that do not fit the prompt.
Status ValidateOptions(const GenerationRequest& request, const RequestLimits& limits);

// Media items must be in order, apart, within the prompt, and have a hash.
Status ValidateExtraKeys(const ExtraKeys& keys, int64_t num_prompt_tokens);

}  // namespace fastllm
