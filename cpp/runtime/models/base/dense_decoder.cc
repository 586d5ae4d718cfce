#include "runtime/models/base/dense_decoder.h"

#include <optional>
#include <string>
#include <vector>

#include "runtime/nn/attention.h"
#include "runtime/nn/embedding.h"
#include "runtime/nn/mlp.h"
#include "runtime/nn/rms_norm.h"
#include "runtime/nn/rotary.h"
#include "runtime/nn/stage.h"
#include "runtime/nn/vocab_head.h"

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

// Of the layers, and of what comes before and after them, what the builder asks for.
class DenseDecoder : public Model {
 public:
  DenseDecoder(const ModelConfig& c, Builder& b)
      : stage_(b),
        rotary_(b, c.rope),
        residual_(b.Buffer("residual", c.hidden_size)),
        hidden_(b.Buffer("hidden", c.hidden_size)) {
    if (stage_.begins()) embed_.emplace(b, "embed_tokens", c.vocab_size, c.hidden_size);
    layers_.reserve(stage_.last_layer() - stage_.first_layer());
    for (int32_t i = stage_.first_layer(); i < stage_.last_layer(); ++i) {
      layers_.emplace_back(c, b, "layers." + std::to_string(i), i - stage_.first_layer());
    }
    if (!stage_.ends()) return;
    norm_.emplace(b, "norm", c.hidden_size, c.rms_norm_eps);
    if (c.tie_word_embeddings && embed_) {
      head_.emplace(b, embed_->weight(), c.vocab_size);
    } else {
      head_.emplace(b, c.tie_word_embeddings ? "embed_tokens" : "lm_head", c.vocab_size, c.hidden_size);
    }
  }

  const at::Tensor& Forward(const ForwardContext& ctx) override {
    const at::Tensor& residual = ctx.scratch->Rows(residual_, ctx.input.num_tokens);
    const at::Tensor& x = ctx.scratch->Rows(hidden_, ctx.input.num_tokens);
    if (embed_) {
      embed_->Forward(ctx, residual);
    } else {
      stage_.Take(ctx, {&residual, &x});
    }
    for (size_t i = 0; i < layers_.size(); ++i) {
      DecoderLayer& layer = layers_[i];
      // The first norm takes the embedding; the others add the output of the layer before to the residual.
      const bool add = i > 0 || !embed_;
      layer.attention.Forward(ctx, rotary_, NormedInput{layer.input_norm, x, residual, add}, x);
      layer.mlp.Forward(ctx, NormedInput{layer.mlp_norm, x, residual, /*add=*/true}, x);
    }
    if (norm_) {
      norm_->AddForward(ctx, x, residual, x);
    } else {
      stage_.Pass(ctx, {&residual, &x});
    }
    return x;
  }

  const at::Tensor& Logits(const ForwardContext& ctx, const at::Tensor& hidden) override {
    return head_->Forward(ctx, hidden);
  }

 private:
  Stage stage_;
  std::optional<Embedding> embed_;
  std::vector<DecoderLayer> layers_;
  Rotary rotary_;
  std::optional<RmsNorm> norm_;
  std::optional<VocabHead> head_;
  Scratch::Slot residual_;
  Scratch::Slot hidden_;
};

}  // namespace

std::unique_ptr<Model> BuildDenseDecoder(const ModelConfig& config, Builder& builder) {
  return std::make_unique<DenseDecoder>(config, builder);
}

}  // namespace fastllm::runtime
