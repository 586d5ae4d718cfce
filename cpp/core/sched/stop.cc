#include "core/sched/stop.h"

#include <algorithm>
#include <vector>

namespace fastllm {
namespace {

bool Contains(const std::vector<TokenId>& ids, TokenId id) { return std::ranges::find(ids, id) != ids.end(); }

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
