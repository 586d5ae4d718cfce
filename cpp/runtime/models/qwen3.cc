// Qwen3 (dense): the dense decoder with norms of the heads of q and k.
// Checkpoints: Qwen3ForCausalLM of Hugging Face; GGUF architecture "qwen3".
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
    {"layers.{}.attn.q_norm.weight", 0, "model.layers.{}.self_attn.q_norm.weight", "blk.{}.attn_q_norm.weight"},
    {"layers.{}.attn.k_norm.weight", 0, "model.layers.{}.self_attn.k_norm.weight", "blk.{}.attn_k_norm.weight"},
    {"layers.{}.attn.o.weight", 0, "model.layers.{}.self_attn.o_proj.weight", "blk.{}.attn_output.weight", kCols},
    {"layers.{}.attn.o.bias", 0, "model.layers.{}.self_attn.o_proj.bias", "blk.{}.attn_output.bias"},
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
  c->attention_bias = c->attention_out_bias = r.BoolOr("attention_bias", false);
  c->qk_norm = true;
  CheckSilu(r);
  CheckFullAttention(r, c->num_layers);
}

void ParseGguf(const ConfigReader& r, const TensorSource& tensors, ModelConfig* c) {
  ParseGgufDecoder(r, "qwen3", tensors, c);
  c->qk_norm = true;
}

}  // namespace

void Register_qwen3(ModelRegistry& registry) {
  registry.Add({"Qwen3ForCausalLM", "qwen3", {kRules, kIgnored}, ParseHf, ParseGguf, BuildDenseDecoder});
}

}  // namespace fastllm::runtime
