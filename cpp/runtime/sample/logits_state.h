// LogitsState: what the processing of a sequence's logits remembers from token to token.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "core/base/ids.h"
#include "core/step/step_plan.h"
#include "ops/contract/logits.h"

namespace fastllm::runtime {

// The distinct tokens of a sequence, counted as they come.
class TokenCounts {
 public:
  void AddPrompt(TokenId id) { At(id).in_prompt = true; }
  void AddOutput(TokenId id) { ++At(id).output_count; }
  ops::List<ops::TokenCount> list() const { return {counts_.data(), static_cast<int32_t>(counts_.size())}; }

 private:
  ops::TokenCount& At(TokenId id);

  std::vector<ops::TokenCount> counts_;
  std::unordered_map<TokenId, int32_t> place_;  // in counts_
};

// Made when the executor meets a sequence, anew after a preemption, and only if its SamplingSpec has a LogitsSpec.
class LogitsState {
 public:
  // tokens: prompt, then output, of which some may be there already.
  LogitsState(const LogitsSpec& spec, const std::vector<TokenId>& tokens, int32_t num_prompt_tokens);

  // An output token was appended to the sequence.
  void Append(TokenId id);

  // What is to be done to the logits of the sequence's next token. `tokens` is the sequence as it is now; the result
  // points into it, the spec and this until one of them changes.
  ops::LogitsRow Row(const LogitsSpec& spec, const std::vector<TokenId>& tokens, int32_t num_prompt_tokens);

 private:
  std::vector<ops::TokenBias> biases_;
  TokenCounts counts_;  // empty without penalties
  bool has_penalties_;
  std::vector<int32_t> banned_;  // last tokens of the bad words whose beginning has just been written
};

}  // namespace fastllm::runtime
