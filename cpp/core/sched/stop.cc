#include "core/sched/stop.h"

#include <algorithm>
#include <optional>
#include <vector>

namespace fastllm {
namespace {

bool Contains(const std::vector<TokenId>& ids, TokenId id) { return std::ranges::find(ids, id) != ids.end(); }

std::optional<LogitsSpec> MakeLogitsSpec(const Request& request) {
  const SamplingParams& sampling = request.sampling;
  LogitsSpec spec;
  spec.repetition_penalty = sampling.repetition_penalty;
  spec.frequency_penalty = sampling.frequency_penalty;
  spec.presence_penalty = sampling.presence_penalty;
  const bool lists =
      !sampling.logit_bias.empty() || sampling.allowed_token_ids || !sampling.bad_words_token_ids.empty();
  if (!lists && !spec.has_penalties() && sampling.dry_multiplier == 0.0f) return std::nullopt;
  spec.logit_bias = sampling.logit_bias;
  if (sampling.allowed_token_ids) spec.allowed = *sampling.allowed_token_ids;
  spec.bad_words = sampling.bad_words_token_ids;
  spec.dry_multiplier = sampling.dry_multiplier;
  spec.dry_base = sampling.dry_base;
  spec.dry_allowed_length = sampling.dry_allowed_length;
  spec.dry_range = std::max(0, sampling.dry_range);
  if (spec.dry_multiplier != 0.0f) spec.dry_breakers = request.dry_breakers;
  return spec;
}

}  // namespace

StopCheck CheckStop(const Sequence& sequence, int32_t max_model_len) {
  const Request& request = *sequence.request;
  const SamplingParams& sampling = request.sampling;
  const TokenId token = sequence.tokens.back();
  if (sequence.num_output_tokens() > sampling.min_tokens) {
    const bool is_eos = !sampling.ignore_eos && Contains(request.eos_token_ids, token);
    if (is_eos && token == request.eos_token_ids[0]) return {FinishReason::kStop, {}};
    if (is_eos || Contains(sampling.stop_token_ids, token)) return {FinishReason::kStop, token};
  }
  const bool at_model_end = max_model_len > 0 && sequence.num_tokens() >= max_model_len;
  if (at_model_end || sequence.num_output_tokens() >= request.max_tokens) return {FinishReason::kLength, {}};
  return {};
}

SamplingSpec MakeSamplingSpec(const Request& request) {
  const SamplingParams& sampling = request.sampling;
  SamplingSpec spec;
  spec.temperature = sampling.temperature;
  spec.top_p = sampling.top_p;
  spec.top_k = std::max(sampling.top_k, 0);
  spec.min_p = sampling.min_p;
  spec.seed = request.seed;
  spec.min_tokens = sampling.min_tokens;
  spec.typical_p = sampling.typical_p;
  spec.top_n_sigma = sampling.top_n_sigma;
  spec.xtc_probability = sampling.xtc_probability;
  spec.xtc_threshold = sampling.xtc_threshold;
  spec.logits = MakeLogitsSpec(request);
  if (sampling.logprobs || sampling.logprob_token_ids) {
    LogprobsSpec& logprobs = spec.logprobs.emplace();
    logprobs.num_top = sampling.logprobs.value_or(0);
    if (sampling.logprob_token_ids) logprobs.ids = *sampling.logprob_token_ids;
  }
  spec.prompt_logprobs = sampling.prompt_logprobs;
  if (!request.logits_processors.empty()) spec.processors = {request.logits_processors, request.index, sampling};
  if (sampling.min_tokens > 0) {
    std::vector<TokenId>& banned = spec.banned_until_min;
    if (!sampling.ignore_eos) banned = request.eos_token_ids;
    banned.insert(banned.end(), sampling.stop_token_ids.begin(), sampling.stop_token_ids.end());
    std::ranges::sort(banned);
    banned.erase(std::ranges::unique(banned).begin(), banned.end());
  }
  return spec;
}

}  // namespace fastllm
