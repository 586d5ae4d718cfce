// StepResult: the executor's answer to a StepPlan. Plain data, serialisable (codec.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/ids.h"
#include "fastllm/output.h"
#include "fastllm/status.h"

namespace fastllm {

struct SampledRow {
  RequestId id = 0;
  std::vector<TokenId> tokens;  // one today; more with speculation. -1: the logits of the row held no usable value
  std::vector<PositionLogprobs> logprobs = {};  // one for each token when the request asked for them, else empty
  std::string error = {};                       // why there is none: a logits processor of the host failed
};

// Of prompt tokens whose logits this step computed.
struct PromptLogprobs {
  RequestId id = 0;
  int32_t first_position = 0;  // >= 1: nothing precedes the token at 0
  std::vector<PositionLogprobs> positions = {};
};

struct StepResult {
  uint64_t step_id = 0;
  Status status;                 // an error poisons the engine
  std::vector<SampledRow> rows;  // the plan's rows with sample == true, in row order
  std::vector<PromptLogprobs> prompt_logprobs = {};
};

}  // namespace fastllm
