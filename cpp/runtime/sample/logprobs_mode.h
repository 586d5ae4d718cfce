// LogprobsMode: of what log probabilities are given, and whether as such.
#pragma once

#include <cstdint>
#include <string_view>

namespace fastllm::runtime {

// As EngineConfig's logprobs_mode. Prompt logprobs are raw logprobs in every mode.
enum class LogprobsMode : uint8_t {
  kRawLogprobs,        // of the model's logits
  kProcessedLogprobs,  // of what the token was drawn from: processors, temperature and filters applied
  kRawLogits,          // the model's logits
  kProcessedLogits,    // logits / temperature, after processors and filters
};

inline bool IsProcessed(LogprobsMode mode) {
  return mode == LogprobsMode::kProcessedLogprobs || mode == LogprobsMode::kProcessedLogits;
}
inline bool IsLogits(LogprobsMode mode) {
  return mode == LogprobsMode::kRawLogits || mode == LogprobsMode::kProcessedLogits;
}

// The mode of that name; the field's check has seen to it that it is one.
inline LogprobsMode LogprobsModeOf(std::string_view name) {
  if (name == "processed_logprobs") return LogprobsMode::kProcessedLogprobs;
  if (name == "raw_logits") return LogprobsMode::kRawLogits;
  if (name == "processed_logits") return LogprobsMode::kProcessedLogits;
  return LogprobsMode::kRawLogprobs;
}

}  // namespace fastllm::runtime
