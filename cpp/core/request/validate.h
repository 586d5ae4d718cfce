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
  int32_t max_logprobs = 20;       // alternatives per position; -1: no limit
  bool by_priority = false;        // the scheduling policy looks at priorities
};

inline constexpr int32_t kMaxLogprobTokenIds = 128;
inline constexpr int32_t kMaxBadWords = 128;
inline constexpr int32_t kMaxBadWordTokens = 1024;  // of all bad words together

// Cuts a prompt as truncate_prompt_tokens and truncation_side say: k tokens are kept, with -1 as many as leave room for
// max_tokens (one token when it is not set) in max_model_len. A value outside its limits cuts nothing: it is refused
// by ValidateRequest().
void TruncatePrompt(const SamplingParams& sampling, int32_t max_model_len, std::vector<TokenId>* prompt);

// The resolved max_tokens (> 0) of the request, or kInvalidArgument that names the value and the limit: empty prompt,
// ids outside [0, vocab), prompt that leaves no room for one output token in max_model_len or in the KV pool, and
// every SamplingParams field outside its FieldCheck or not finite, lists over their limits, bad_words without their
// token ids (only a tokenizer can make them). max_tokens is clipped to the room that is left in
// max_model_len and in the pool.
Result<int32_t> ValidateRequest(const std::vector<TokenId>& prompt, const SamplingParams& sampling,
                                const RequestLimits& limits);

}  // namespace fastllm
