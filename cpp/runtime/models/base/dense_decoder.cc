#include "runtime/models/base/dense_decoder.h"

#include <string>
#include <vector>

#include "runtime/nn/attention.h"
#include "runtime/nn/embedding.h"
#include "runtime/nn/linear.h"
#include "runtime/nn/mlp.h"
#include "runtime/nn/rms_norm.h"
#include "runtime/nn/rotary.h"

namespace fastllm::runtime {
namespace {

struct DecoderLayer {
  DecoderLayer(const ModelConfig& c, Builder& b, const std::string& path, int32_t layer)
      : input_norm(b, path + ".input_norm", c.hidden_size, c.rms_norm_eps),
        attention(b, path + ".attn", layer,
                  {c.hidden_size, c.num_heads, c.num_kv_heads, c.head_dim, c.attention_bias, c.attention_out_bias,
                   c.qk_norm, c.rms_norm_eps},
                  c.rope.interleaved),
        mlp_norm(b, path + ".mlp_norm", c.hidden_size, c.rms_norm_eps),
        mlp(b, path + ".mlp", c.hidden_size, c.intermediate_size, c.mlp_bias) {}

  RmsNorm input_norm;
  Attention attention;
  RmsNorm mlp_norm;
  GatedMlp mlp;
};

class DenseDecoder : public Model {
 public:
  DenseDecoder(const ModelConfig& c, Builder& b)
      : embed_(b, "embed_tokens", c.vocab_size, c.hidden_size),
        rotary_(b, c.rope),
        norm_(b, "norm", c.hidden_size, c.rms_norm_eps),
        lm_head_(c.tie_word_embeddings ? Linear(b, embed_.weight())
                                       : Linear(b, "lm_head", {c.vocab_size}, c.hidden_size, false)),
        residual_(b.Buffer("residual", c.hidden_size)),
        hidden_(b.Buffer("hidden", c.hidden_size)),
        logits_(b.Float32Buffer("logits", c.vocab_size)) {
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
      layer.attention.Forward(ctx, rotary_, NormedInput{layer.input_norm, x, residual, /*add=*/i > 0}, x);
      layer.mlp.Forward(ctx, NormedInput{layer.mlp_norm, x, residual, /*add=*/true}, x);
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

}  // namespace

std::unique_ptr<Model> BuildDenseDecoder(const ModelConfig& config, Builder& builder) {
  return std::make_unique<DenseDecoder>(config, builder);
}

}  // namespace fastllm::runtime
