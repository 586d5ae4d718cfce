// Checks of one request's values against the model and the engine, before a Request is made of them.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/ids.h"
#include "fastllm/sampling_params.h"
#include "fastllm/status.h"

namespace fastllm {

// Each output has its own copy of the tokens: 2^26 of them are half a gigabyte.
inline constexpr int64_t kMaxFanOutTokens = int64_t{1} << 26;

struct RequestLimits {
  int32_t vocab_size = 0;
  int32_t max_model_len = 0;
  int32_t kv_capacity_tokens = 0;  // (num_blocks - 1) * block_size
  bool has_tokens = false;         // a TokenTable is there, so text and stop strings are
};

// The resolved max_tokens (> 0) of the request, or kInvalidArgument that names the value and the limit: empty prompt,
// ids outside [0, vocab), prompt that leaves no room for one output token in max_model_len or in the KV pool, and
// every SamplingParams field outside its FieldCheck or not finite. max_tokens is clipped to the room that is left in
// max_model_len and in the pool.
Result<int32_t> ValidateRequest(const std::vector<TokenId>& prompt, const SamplingParams& sampling,
                                const RequestLimits& limits);

}  // namespace fastllm
