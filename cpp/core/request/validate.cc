#include "core/request/validate.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "core/config/field_access.h"
#include "core/text/utf8_decoder.h"

namespace fastllm {
namespace {

std::string Str(int64_t v) { return std::to_string(v); }

Status OutsideVocabulary(std::string name, int32_t vocab_size, int32_t id) {
  name += " must be in [0, ";
  name += Str(int64_t{vocab_size} - 1);
  name += "], the model's vocabulary, got ";
  name += Str(id);
  return Status::InvalidArgument(std::move(name));
}

std::string Element(std::string_view name, size_t index) {
  std::string out(name);
  out += '[';
  out += std::to_string(index);
  out += ']';
  return out;
}

Status CheckIds(std::string_view name, const std::vector<TokenId>& ids, int32_t vocab_size) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size) return OutsideVocabulary(Element(name, i), vocab_size, ids[i]);
  }
  return Status::Ok();
}

Status CheckCount(const char* name, const char* what, size_t count, int64_t most) {
  if (std::cmp_less_equal(count, most)) return Status::Ok();
  return Status::InvalidArgument(std::string(name) + " must hold at most " + Str(most) + what + ", got " +
                                 Str(static_cast<int64_t>(count)));
}

Status CheckBiases(const SamplingParams& sampling, int32_t vocab_size) {
  std::vector<TokenId> ids;
  ids.reserve(sampling.logit_bias.size());
  for (const LogitBias& bias : sampling.logit_bias) {
    if (bias.id >= vocab_size) return OutsideVocabulary("logit_bias token id", vocab_size, bias.id);
    ids.push_back(bias.id);
  }
  std::ranges::sort(ids);
  const auto twice = std::ranges::adjacent_find(ids);
  if (twice == ids.end()) return Status::Ok();
  return Status::InvalidArgument("logit_bias must hold a token id once, got " + Str(*twice) + " twice");
}

Status CheckBadWords(const SamplingParams& sampling, int32_t vocab_size) {
  if (!sampling.bad_words.empty()) {
    return Status::InvalidArgument(
        "bad_words need a tokenizer, which the engine does not have: pass their tokens in "
        "bad_words_token_ids");
  }
  const auto& words = sampling.bad_words_token_ids;
  FASTLLM_RETURN_IF_ERROR(CheckCount("bad_words", " words", words.size(), kMaxBadWords));
  size_t num_tokens = 0;
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i].empty()) return Status::InvalidArgument(Element("bad_words_token_ids", i) + " must not be empty");
    FASTLLM_RETURN_IF_ERROR(CheckIds(Element("bad_words_token_ids", i), words[i], vocab_size));
    num_tokens += words[i].size();
  }
  return CheckCount("bad_words", " tokens in all", num_tokens, kMaxBadWordTokens);
}

Status CheckDryBreakers(const SamplingParams& sampling, const RequestLimits& limits) {
  if (sampling.dry_multiplier == 0.0f || sampling.dry_sequence_breakers.empty()) return Status::Ok();
  if (!limits.has_tokens) {
    return Status::InvalidArgument("dry_sequence_breakers need a token table, and this engine was made without one");
  }
  FASTLLM_RETURN_IF_ERROR(
      CheckCount("dry_sequence_breakers", " texts", sampling.dry_sequence_breakers.size(), kMaxBadWords));
  for (size_t i = 0; i < sampling.dry_sequence_breakers.size(); ++i) {
    if (sampling.dry_sequence_breakers[i].empty()) {
      return Status::InvalidArgument(Element("dry_sequence_breakers", i) + " must not be empty");
    }
  }
  return Status::Ok();
}

// What changes logits before a token is drawn.
Status CheckProcessors(const SamplingParams& sampling, const RequestLimits& limits) {
  if (sampling.allowed_token_ids) {
    const std::vector<TokenId>& ids = *sampling.allowed_token_ids;
    if (ids.empty()) return Status::InvalidArgument("allowed_token_ids must not be empty");
    FASTLLM_RETURN_IF_ERROR(
        CheckCount("allowed_token_ids", " ids, the model's vocabulary", ids.size(), limits.vocab_size));
    FASTLLM_RETURN_IF_ERROR(CheckIds("allowed_token_ids", ids, limits.vocab_size));
  }
  FASTLLM_RETURN_IF_ERROR(CheckBiases(sampling, limits.vocab_size));
  FASTLLM_RETURN_IF_ERROR(CheckBadWords(sampling, limits.vocab_size));
  return CheckDryBreakers(sampling, limits);
}

Status CheckLogprobCount(const char* name, const std::optional<int32_t>& count, const RequestLimits& limits) {
  if (!count || limits.max_logprobs < 0) return Status::Ok();
  const int32_t asked = *count < 0 ? limits.vocab_size : *count;
  if (asked <= limits.max_logprobs) return Status::Ok();
  return Status::InvalidArgument(std::string(name) + " must be at most max_logprobs (" + Str(limits.max_logprobs) +
                                 "), got " + Str(*count) + (*count < 0 ? ", the whole vocabulary" : ""));
}

Status CheckLogprobs(const SamplingParams& sampling, const RequestLimits& limits) {
  FASTLLM_RETURN_IF_ERROR(CheckLogprobCount("logprobs", sampling.logprobs, limits));
  FASTLLM_RETURN_IF_ERROR(CheckLogprobCount("prompt_logprobs", sampling.prompt_logprobs, limits));
  if (!sampling.logprob_token_ids) return Status::Ok();
  FASTLLM_RETURN_IF_ERROR(
      CheckCount("logprob_token_ids", " ids", sampling.logprob_token_ids->size(), kMaxLogprobTokenIds));
  return CheckIds("logprob_token_ids", *sampling.logprob_token_ids, limits.vocab_size);
}

Status CheckStops(const SamplingParams& sampling, const RequestLimits& limits) {
  if (sampling.stop.empty()) return Status::Ok();
  if (!sampling.detokenize) return Status::InvalidArgument("stop strings need detokenize, which is false");
  if (!limits.has_tokens) {
    return Status::InvalidArgument("stop strings need a token table, and this engine was made without one");
  }
  for (size_t i = 0; i < sampling.stop.size(); ++i) {
    const std::string name = Element("stop", i);
    if (sampling.stop[i].empty()) return Status::InvalidArgument(name + " must not be empty");
    if (!IsValidUtf8(sampling.stop[i])) return Status::InvalidArgument(name + " must be valid UTF-8");
  }
  return Status::Ok();
}

}  // namespace

void TruncatePrompt(const SamplingParams& sampling, int32_t max_model_len, std::vector<TokenId>* prompt) {
  if (!sampling.truncate_prompt_tokens) return;
  int64_t keep = *sampling.truncate_prompt_tokens;
  if (keep == -1) keep = std::max<int64_t>(1, int64_t{max_model_len} - std::max(1, sampling.max_tokens.value_or(1)));
  if (keep < 0 || std::cmp_less_equal(prompt->size(), keep)) return;
  if (sampling.truncation_side == "right") {
    prompt->resize(static_cast<size_t>(keep));
  } else {
    prompt->erase(prompt->begin(), prompt->end() - keep);
  }
}

Result<int32_t> ValidateRequest(const std::vector<TokenId>& prompt, const SamplingParams& sampling,
                                const RequestLimits& limits) {
  FASTLLM_RETURN_IF_ERROR(ValidateFields(sampling));
  FASTLLM_RETURN_IF_ERROR(CheckIds("stop_token_ids", sampling.stop_token_ids, limits.vocab_size));
  FASTLLM_RETURN_IF_ERROR(CheckStops(sampling, limits));
  FASTLLM_RETURN_IF_ERROR(CheckProcessors(sampling, limits));
  FASTLLM_RETURN_IF_ERROR(CheckLogprobs(sampling, limits));
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
