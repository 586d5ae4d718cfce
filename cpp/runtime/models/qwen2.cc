// Qwen2: the dense decoder with biases of q, k and v.
// Checkpoints: Qwen2ForCausalLM of Hugging Face; GGUF architecture "qwen2".
#include <string>

#include "runtime/models/base/dense_decoder.h"
#include "runtime/models/base/registry.h"
#include "runtime/models/config/decoder_config.h"

namespace fastllm::runtime {
namespace {

using enum ShardAxis;

constexpr WeightRule kRules[] = {
    {"embed_tokens.weight", 0, "model.embed_tokens.weight", "token_embd.weight", kRows},
    {"layers.{}.input_norm.weight", 0, "model.layers.{}.input_layernorm.weight", "blk.{}.attn_norm.weight"},
    {"layers.{}.attn.qkv.weight", 0, "model.layers.{}.self_attn.q_proj.weight", "blk.{}.attn_q.weight", kRows},
    {"layers.{}.attn.qkv.weight", 1, "model.layers.{}.self_attn.k_proj.weight", "blk.{}.attn_k.weight", kRows},
    {"layers.{}.attn.qkv.weight", 2, "model.layers.{}.self_attn.v_proj.weight", "blk.{}.attn_v.weight", kRows},
    {"layers.{}.attn.qkv.bias", 0, "model.layers.{}.self_attn.q_proj.bias", "blk.{}.attn_q.bias", kRows},
    {"layers.{}.attn.qkv.bias", 1, "model.layers.{}.self_attn.k_proj.bias", "blk.{}.attn_k.bias", kRows},
    {"layers.{}.attn.qkv.bias", 2, "model.layers.{}.self_attn.v_proj.bias", "blk.{}.attn_v.bias", kRows},
    {"layers.{}.attn.o.weight", 0, "model.layers.{}.self_attn.o_proj.weight", "blk.{}.attn_output.weight", kCols},
    {"layers.{}.mlp_norm.weight", 0, "model.layers.{}.post_attention_layernorm.weight", "blk.{}.ffn_norm.weight"},
    {"layers.{}.mlp.gate_up.weight", 0, "model.layers.{}.mlp.gate_proj.weight", "blk.{}.ffn_gate.weight", kRows},
    {"layers.{}.mlp.gate_up.weight", 1, "model.layers.{}.mlp.up_proj.weight", "blk.{}.ffn_up.weight", kRows},
    {"layers.{}.mlp.down.weight", 0, "model.layers.{}.mlp.down_proj.weight", "blk.{}.ffn_down.weight", kCols},
    {"norm.weight", 0, "model.norm.weight", "output_norm.weight"},
    {"lm_head.weight", 0, "lm_head.weight", "output.weight", kRows},
};
constexpr std::string_view kIgnored[] = {
    "lm_head.weight",  // equal to the embedding when tied
    "*.rotary_emb.inv_freq",
};

void ParseHf(const ConfigReader& r, ModelConfig* c) {
  ParseHfDecoder(r, c);
  c->attention_bias = true;
  CheckSilu(r);
  CheckFullAttention(r, c->num_layers);
}

void ParseGguf(const ConfigReader& r, const TensorSource& tensors, ModelConfig* c) {
  ParseGgufDecoder(r, "qwen2", tensors, c);
  c->attention_bias = true;
}

}  // namespace

void Register_qwen2(ModelRegistry& registry) {
  registry.Add({"Qwen2ForCausalLM", "qwen2", {kRules, kIgnored}, ParseHf, ParseGguf, BuildDenseDecoder});
}

}  // namespace fastllm::runtime
