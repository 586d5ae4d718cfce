#include "runtime/sample/logits_state.h"

#include <algorithm>

namespace fastllm::runtime {
namespace {

ops::List<int32_t> ListOf(const std::vector<int32_t>& v) { return {v.data(), static_cast<int32_t>(v.size())}; }

}  // namespace

ops::TokenCount& TokenCounts::At(TokenId id) {
  const auto [it, is_new] = place_.try_emplace(id, static_cast<int32_t>(counts_.size()));
  if (is_new) counts_.push_back({id, 0, false});
  return counts_[it->second];
}

LogitsState::LogitsState(const LogitsSpec& spec, const std::vector<TokenId>& tokens, int32_t num_prompt_tokens)
    : has_penalties_(spec.has_penalties()) {
  biases_.reserve(spec.logit_bias.size());
  for (const LogitBias& b : spec.logit_bias) biases_.push_back({b.id, b.bias});
  if (!has_penalties_) return;
  for (int32_t i = 0; i < num_prompt_tokens; ++i) counts_.AddPrompt(tokens[i]);
  for (size_t i = num_prompt_tokens; i < tokens.size(); ++i) counts_.AddOutput(tokens[i]);
}

void LogitsState::Append(TokenId id) {
  if (has_penalties_) counts_.AddOutput(id);
}

ops::LogitsRow LogitsState::Row(const LogitsSpec& spec, const std::vector<TokenId>& tokens, int32_t num_prompt_tokens) {
  banned_.clear();
  const auto outputs = static_cast<int64_t>(tokens.size()) - num_prompt_tokens;
  for (const std::vector<TokenId>& word : spec.bad_words) {
    const auto begun = static_cast<int64_t>(word.size()) - 1;
    if (begun <= outputs && std::equal(word.begin(), word.end() - 1, tokens.end() - begun)) {
      banned_.push_back(word.back());
    }
  }
  ops::LogitsRow row;
  if (!spec.allowed.empty()) row.allowed = ListOf(spec.allowed);
  row.bad_words = ListOf(banned_);
  row.logit_bias = {biases_.data(), static_cast<int32_t>(biases_.size())};
  row.counts = counts_.list();
  row.repetition_penalty = spec.repetition_penalty;
  row.frequency_penalty = spec.frequency_penalty;
  row.presence_penalty = spec.presence_penalty;
  if (spec.dry_multiplier != 0.0f) {
    row.dry.multiplier = spec.dry_multiplier;
    row.dry.base = spec.dry_base;
    row.dry.allowed_length = spec.dry_allowed_length;
    row.dry.range = spec.dry_range;
    row.dry.history = ListOf(tokens);
    row.dry.breakers = ListOf(spec.dry_breakers);
  }
  return row;
}

}  // namespace fastllm::runtime
