// DenseDecoder: the decoder of Llama and its relatives. RMS norm before each block, grouped-query attention with rotary
// embedding, SwiGLU. What differs between the relatives is in ModelConfig: biases, per-head norms of q and k, rope.
//
// Parameters: embed_tokens.weight, layers.{}.{input_norm, attn.{qkv, o, q_norm, k_norm}, mlp_norm, mlp.{gate_up,
// down}}, norm.weight, lm_head.weight (unless tied).
#pragma once

#include <memory>

#include "runtime/models/base/model.h"
#include "runtime/models/model_config.h"
#include "runtime/nn/builder.h"

namespace fastllm::runtime {

std::unique_ptr<Model> BuildDenseDecoder(const ModelConfig& config, Builder& builder);

}  // namespace fastllm::runtime
