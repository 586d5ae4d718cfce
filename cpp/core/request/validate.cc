#include "core/request/validate.h"

#include <algorithm>
#include <string>

#include "core/config/field_access.h"
#include "core/text/utf8_decoder.h"

namespace fastllm {
namespace {

std::string Str(int64_t v) { return std::to_string(v); }

Status CheckIds(const char* name, const std::vector<TokenId>& ids, int32_t vocab_size) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size) {
      return Status::InvalidArgument(std::string(name) + "[" + std::to_string(i) + "] must be in [0, " +
                                     Str(int64_t{vocab_size} - 1) + "], the model's vocabulary, got " + Str(ids[i]));
    }
  }
  return Status::Ok();
}

Status CheckStops(const SamplingParams& sampling, const RequestLimits& limits) {
  if (sampling.stop.empty()) return Status::Ok();
  if (!sampling.detokenize) return Status::InvalidArgument("stop strings need detokenize, which is false");
  if (!limits.has_tokens) {
    return Status::InvalidArgument("stop strings need a token table, and this engine was made without one");
  }
  for (size_t i = 0; i < sampling.stop.size(); ++i) {
    const std::string name = "stop[" + std::to_string(i) + "]";
    if (sampling.stop[i].empty()) return Status::InvalidArgument(name + " must not be empty");
    if (!IsValidUtf8(sampling.stop[i])) return Status::InvalidArgument(name + " must be valid UTF-8");
  }
  return Status::Ok();
}

}  // namespace

Result<int32_t> ValidateRequest(const std::vector<TokenId>& prompt, const SamplingParams& sampling,
                                const RequestLimits& limits) {
  FASTLLM_RETURN_IF_ERROR(ValidateFields(sampling));
  FASTLLM_RETURN_IF_ERROR(CheckIds("stop_token_ids", sampling.stop_token_ids, limits.vocab_size));
  FASTLLM_RETURN_IF_ERROR(CheckStops(sampling, limits));
  if (sampling.max_tokens && sampling.min_tokens > *sampling.max_tokens) {
    return Status::InvalidArgument("min_tokens must be at most max_tokens (" + Str(*sampling.max_tokens) + "), got " +
                                   Str(sampling.min_tokens));
  }
  if (prompt.empty()) return Status::InvalidArgument("the prompt must have at least 1 token, got 0");
  // Lengths before ids: a prompt that is far too long is refused without a walk over it.
  const int64_t length = static_cast<int64_t>(prompt.size());
  if (length >= limits.max_model_len) {
    return Status::InvalidArgument("the prompt must have at most " + Str(limits.max_model_len - 1) +
                                   " tokens to leave room for one output token in max_model_len (" +
                                   Str(limits.max_model_len) + "), got " + Str(length));
  }
  if (length >= limits.kv_capacity_tokens) {
    return Status::InvalidArgument("the prompt must have at most " + Str(limits.kv_capacity_tokens - 1) +
                                   " tokens to leave room for one output token in the KV cache (" +
                                   Str(limits.kv_capacity_tokens) + " tokens), got " + Str(length));
  }
  FASTLLM_RETURN_IF_ERROR(CheckIds("prompt_token_ids", prompt, limits.vocab_size));
  if (sampling.n * length > kMaxFanOutTokens) {
    return Status::InvalidArgument("n times the prompt's tokens must be at most " + Str(kMaxFanOutTokens) + ", got " +
                                   Str(sampling.n) + " times " + Str(length));
  }
  const int64_t room = std::min<int64_t>(limits.max_model_len, limits.kv_capacity_tokens) - length;
  return static_cast<int32_t>(std::min<int64_t>(room, sampling.max_tokens.value_or(limits.max_model_len)));
}

}  // namespace fastllm
