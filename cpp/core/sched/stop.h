// Token-level rules of one request: when an output token ends it, and what the sampler needs to know.
#pragma once

#include <cstdint>

#include "core/base/ids.h"
#include "core/request/request.h"
#include "core/request/sequence.h"
#include "core/step/step_plan.h"
#include "fastllm/output.h"

namespace fastllm {

struct StopCheck {
  FinishReason reason = FinishReason::kNone;
  StopReason stop_reason;
};

// Looks at the last token of a sequence that has at least one output token. In order: the primary end-of-sequence id
// -> kStop without a reason; stop_token_ids and the model's other end-of-sequence ids -> kStop with the id; max_tokens
// or max_model_len (0: no such limit) reached -> kLength. ignore_eos takes out all of the model's ids. A token that
// the sampler was to ban because of min_tokens does not stop.
StopCheck CheckStop(const Sequence& sequence, int32_t max_model_len);

// The sampler's share of the request. banned_until_min is filled when min_tokens > 0: the model's end-of-sequence ids
// unless ignore_eos, and stop_token_ids, each once.
SamplingSpec MakeSamplingSpec(const Request& request);

}  // namespace fastllm
