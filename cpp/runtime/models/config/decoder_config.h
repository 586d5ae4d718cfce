// The config values that nearly every decoder-only architecture has, under the names that nearly all use.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/models/config/config_reader.h"
#include "runtime/models/model_config.h"

namespace fastllm::runtime {

// config.json: sizes, norm epsilon, tie flag and rope, in the forms of transformers 5 (rope_parameters) and of older
// versions (rope_theta, rope_scaling). Grouped heads are checked to divide.
void ParseHfDecoder(const ConfigReader& reader, ModelConfig* config);

// GGUF metadata under "<arch>.": the same values. vocab_size is the height of token_embd.weight, the tie flag the
// absence of output.weight, biases the presence of their tensors, rope factors rope_freqs.weight.
void ParseGgufDecoder(const ConfigReader& reader, const std::string& arch, const TensorSource& tensors,
                      ModelConfig* config);

// Refuses another activation than silu, by name.
void CheckSilu(const ConfigReader& reader);

// Refuses layers with another attention than full, by name (use_sliding_window, layer_types).
void CheckFullAttention(const ConfigReader& reader, int32_t num_layers);

// Rope of either format. head_dim must be set.
void ParseHfRope(const ConfigReader& reader, ModelConfig* config);
void ParseGgufRope(const ConfigReader& reader, const std::string& arch, const TensorSource& tensors,
                   ModelConfig* config);

// Limits that keep every size product inside int64 and every index inside int32.
inline constexpr int64_t kMaxWidth = 1 << 20;  // hidden, intermediate
inline constexpr int64_t kMaxHeads = 4096;
inline constexpr int64_t kMaxHeadDim = 1024;
inline constexpr int64_t kMaxLayers = 4096;
inline constexpr int64_t kMaxVocab = 1 << 24;
inline constexpr int64_t kMaxPositions = 1 << 26;

}  // namespace fastllm::runtime
