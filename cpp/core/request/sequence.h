// Sequence: the token progress of one request and nothing else. Text state lives in text/, random numbers in
// runtime/sample, block ids in kv/.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/ids.h"
#include "core/request/request.h"
#include "fastllm/output.h"

namespace fastllm {

enum class SequenceState : uint8_t { kWaiting, kRunning, kPreempted, kFinished };

// There is no prefill or decode phase: a step narrows the gap between num_computed_tokens and tokens.size().
struct Sequence {
  std::shared_ptr<const Request> request;
  std::vector<TokenId> tokens;      // prompt, then output
  int32_t num_computed_tokens = 0;  // tokens whose KV is, or in the running step will be, in the cache
  int32_t num_cached_tokens = -1;   // prefix-cache hit at the first admission; -1 before it
  int32_t num_preemptions = 0;
  SequenceState state = SequenceState::kWaiting;
  FinishReason finish_reason = FinishReason::kNone;

  int32_t num_prompt_tokens() const { return static_cast<int32_t>(request->prompt.size()); }
  int32_t num_tokens() const { return static_cast<int32_t>(tokens.size()); }
  int32_t num_output_tokens() const { return num_tokens() - num_prompt_tokens(); }
};

}  // namespace fastllm
