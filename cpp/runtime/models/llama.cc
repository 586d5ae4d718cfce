// Llama: RMS norm before each block, grouped-query attention with rotary embedding, SwiGLU.
// Checkpoints: LlamaForCausalLM of Hugging Face; GGUF architecture "llama" (its q and k rows are stored for
// interleaved rotation).
#include <memory>
#include <string>
#include <vector>

#include "runtime/models/base/registry.h"
#include "runtime/models/config/decoder_config.h"
#include "runtime/nn/attention.h"
#include "runtime/nn/embedding.h"
#include "runtime/nn/linear.h"
#include "runtime/nn/mlp.h"
#include "runtime/nn/rms_norm.h"
#include "runtime/nn/rotary.h"

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
    {"layers.{}.attn.o.bias", 0, "model.layers.{}.self_attn.o_proj.bias", "blk.{}.attn_output.bias"},
    {"layers.{}.mlp_norm.weight", 0, "model.layers.{}.post_attention_layernorm.weight", "blk.{}.ffn_norm.weight"},
    {"layers.{}.mlp.gate_up.weight", 0, "model.layers.{}.mlp.gate_proj.weight", "blk.{}.ffn_gate.weight", kRows},
    {"layers.{}.mlp.gate_up.weight", 1, "model.layers.{}.mlp.up_proj.weight", "blk.{}.ffn_up.weight", kRows},
    {"layers.{}.mlp.gate_up.bias", 0, "model.layers.{}.mlp.gate_proj.bias", "blk.{}.ffn_gate.bias", kRows},
    {"layers.{}.mlp.gate_up.bias", 1, "model.layers.{}.mlp.up_proj.bias", "blk.{}.ffn_up.bias", kRows},
    {"layers.{}.mlp.down.weight", 0, "model.layers.{}.mlp.down_proj.weight", "blk.{}.ffn_down.weight", kCols},
    {"layers.{}.mlp.down.bias", 0, "model.layers.{}.mlp.down_proj.bias", "blk.{}.ffn_down.bias"},
    {"norm.weight", 0, "model.norm.weight", "output_norm.weight"},
    {"lm_head.weight", 0, "lm_head.weight", "output.weight", kRows},
};
constexpr std::string_view kIgnored[] = {
    "lm_head.weight",         // equal to the embedding when tied
    "*.rotary_emb.inv_freq",  // older checkpoints store the frequencies
    "rope_freqs.weight",      // read with the config
    "blk.*.attn_rot_embd",
};

void ParseHf(const ConfigReader& r, ModelConfig* c) {
  ParseHfDecoder(r, c);
  c->attention_bias = r.BoolOr("attention_bias", false);
  c->mlp_bias = r.BoolOr("mlp_bias", false);
  const std::string act = r.StringOr("hidden_act", "silu");
  if (act != "silu") r.Refuse("hidden_act", "\"" + act + "\"", "this architecture has silu");
}

void ParseGguf(const ConfigReader& r, const TensorSource& tensors, ModelConfig* c) {
  ParseGgufDecoder(r, "llama", tensors, c);
  c->rope.interleaved = true;
  const int64_t experts = r.IntOr("llama.expert_count", 0, 0, 1 << 16);
  if (experts > 0) r.Refuse("llama.expert_count", std::to_string(experts), "this architecture has no experts");
}

struct DecoderLayer {
  DecoderLayer(const ModelConfig& c, Builder& b, const std::string& path, int32_t layer)
      : input_norm(b, path + ".input_norm", c.hidden_size, c.rms_norm_eps),
        attention(b, path + ".attn", layer, {c.hidden_size, c.num_heads, c.num_kv_heads, c.head_dim, c.attention_bias}),
        mlp_norm(b, path + ".mlp_norm", c.hidden_size, c.rms_norm_eps),
        mlp(b, path + ".mlp", c.hidden_size, c.intermediate_size, c.mlp_bias) {}

  RmsNorm input_norm;
  Attention attention;
  RmsNorm mlp_norm;
  GatedMlp mlp;
};

class LlamaForCausalLM : public Model {
 public:
  LlamaForCausalLM(const ModelConfig& c, Builder& b)
      : embed_(b, "embed_tokens", c.vocab_size, c.hidden_size),
        rotary_(b, c.rope, c.num_heads, c.num_kv_heads, c.head_dim),
        norm_(b, "norm", c.hidden_size, c.rms_norm_eps),
        lm_head_(c.tie_word_embeddings ? Linear(b, embed_.weight())
                                       : Linear(b, "lm_head", {c.vocab_size}, c.hidden_size, false)),
        residual_(b.Buffer("residual", c.hidden_size)),
        hidden_(b.Buffer("hidden", c.hidden_size)),
        logits_(b.Buffer("logits", c.vocab_size)) {
    layers_.reserve(c.num_layers);
    for (int32_t i = 0; i < c.num_layers; ++i) layers_.emplace_back(c, b, "layers." + std::to_string(i), i);
  }

  const at::Tensor& Forward(const ForwardContext& ctx) override {
    const at::Tensor& residual = ctx.scratch->Rows(residual_, ctx.input.num_tokens);
    const at::Tensor& x = ctx.scratch->Rows(hidden_, ctx.input.num_tokens);
    embed_.Forward(ctx, residual);
    for (size_t i = 0; i < layers_.size(); ++i) {
      DecoderLayer& layer = layers_[i];
      // The first norm takes the embedding; the others add the output of the layer before to the residual.
      if (i == 0) {
        layer.input_norm.Forward(ctx, residual, x);
      } else {
        layer.input_norm.AddForward(ctx, x, residual, x);
      }
      layer.attention.Forward(ctx, rotary_, x, x);
      layer.mlp_norm.AddForward(ctx, x, residual, x);
      layer.mlp.Forward(ctx, x, x);
    }
    norm_.AddForward(ctx, x, residual, x);
    return x;
  }

  const at::Tensor& Logits(const ForwardContext& ctx, const at::Tensor& hidden) override {
    const at::Tensor& logits = ctx.scratch->Rows(logits_, hidden.size(0));
    lm_head_.Forward(ctx, hidden, logits);
    return logits;
  }

 private:
  Embedding embed_;
  std::vector<DecoderLayer> layers_;
  Rotary rotary_;
  RmsNorm norm_;
  Linear lm_head_;
  Scratch::Slot residual_;
  Scratch::Slot hidden_;
  Scratch::Slot logits_;
};

std::unique_ptr<Model> Build(const ModelConfig& config, Builder& builder) {
  return std::make_unique<LlamaForCausalLM>(config, builder);
}

}  // namespace

void Register_llama(ModelRegistry& registry) {
  registry.Add({"LlamaForCausalLM", "llama", {kRules, kIgnored}, ParseHf, ParseGguf, Build});
}

}  // namespace fastllm::runtime
