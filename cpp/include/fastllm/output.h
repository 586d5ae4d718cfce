// What the engine tells its host about running requests. Plain data.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "fastllm/export.h"

namespace fastllm {

enum class FinishReason : uint8_t { kNone = 0, kStop, kLength, kAbort, kError };

// "stop", "length", "abort", "error"; "" for kNone.
FASTLLM_API const char* FinishReasonName(FinishReason reason);

// Why kStop: nothing (end of sequence), the matched stop token id, or the matched stop string.
using StopReason = std::variant<std::monostate, int32_t, std::string>;

// News of one request since the last delta. The last delta of a request is the one with a finish_reason;
// nothing follows it. Concatenated over deltas, token_ids and text are the whole output.
struct RequestDelta {
  uint64_t request_id = 0;         // the handle that Engine::Submit returned
  std::vector<int32_t> token_ids;  // new output tokens, the stop token included
  std::string text;                // new text, valid UTF-8; "" when detokenize is off
  FinishReason finish_reason = FinishReason::kNone;
  StopReason stop_reason;
  std::string error;  // why, when finish_reason is kError
  int32_t num_prompt_tokens = 0;
  int32_t num_cached_tokens = 0;  // prompt tokens whose KV came from the prefix cache
};

}  // namespace fastllm
