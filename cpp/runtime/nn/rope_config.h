#pragma once

#include <cstdint>
#include <vector>

namespace fastllm::runtime {

// How a model rotates queries and keys.
struct RopeConfig {
  enum class Scaling : uint8_t { kNone, kLinear, kLlama3, kYarn, kDynamic };
  Scaling scaling = Scaling::kNone;
  double theta = 10000.0;
  int32_t rotary_dim = 0;    // head_dim unless partial
  bool interleaved = false;  // pairs (2i, 2i+1): GGUF llama files store q and k rows for this
  double factor = 1.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  double attention_factor = 0.0;  // 0: derived
  bool yarn_truncate = true;      // round the ends of the yarn ramp to whole pairs
  int32_t original_max_position = 0;
  std::vector<float> freq_factors;  // GGUF rope_freqs.weight, [rotary_dim / 2], or empty
};

}  // namespace fastllm::runtime
