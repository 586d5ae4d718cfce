#include "runtime/models/base/dense_decoder.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "ops/contract/embedding.h"
#include "runtime/nn/attention.h"
#include "runtime/nn/embedding.h"
#include "runtime/nn/fused.h"
#include "runtime/nn/mlp.h"
#include "runtime/nn/rms_norm.h"
#include "runtime/nn/rotary.h"
#include "runtime/nn/stage.h"
#include "runtime/nn/vocab_head.h"

namespace fastllm::runtime {
namespace {

// On a GPU. Measured for Llama-8B (bench/RESULTS.md): 4 % faster with one row, no gain with 8, and a kernel of this
// kind for more rows is behind cuBLASLt and separate ops.
constexpr int64_t kMostFusedRows = 4;
static_assert(kMostFusedRows <= ops::kFusedRows);

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
        fused_(b, c.head_dim),
        squares_(b.Float32Buffer("squares", ops::SquareParts(c.hidden_size))),
        residual_(b.Buffer("residual", c.hidden_size)),
        hidden_(b.Buffer("hidden", c.hidden_size)),
        few_{b.Op<ops::GatherRowsFn>(ops::OpId::kGatherRows), b.Buffer("wanted_residual", c.hidden_size),
             b.Buffer("wanted_hidden", c.hidden_size)} {
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
    // Also where it is not needed: graphs keep the address that the largest step has given it.
    const at::Tensor& squares = ctx.scratch->Rows(squares_, ctx.input.num_tokens);
    if (embed_) {
      embed_->Forward(ctx, residual);
    } else {
      stage_.Take(ctx, {&residual, &x});
    }
    if (CanFuse(x)) return Wanted(ctx, ForwardFused(ctx, {residual, x, squares, norm_->eps(), /*normed=*/true}));
    ForwardContext inner = ctx;
    if (embed_ && norm_ && !layers_.empty()) norm_->DeferSums(&inner, x);
    const bool adds = AddsInProducts(x);
    const bool few = inner.defers_sums && (!x.is_cuda() || x.size(0) <= kMostFusedRows);
    for (size_t i = 0; i < layers_.size(); ++i) {
      const DecoderLayer& layer = layers_[i];
      // The first norm takes the embedding; the others add the output of the layer before to the residual.
      const bool add = !adds && (i > 0 || !embed_);
      const NormedInput input{layer.input_norm, x, residual, add, layer.attention.first_weight()};
      if (ctx.wanted.some() && norm_ && i + 1 == layers_.size()) return ForwardLast(inner, layer, input);
      if (few && layer.attention.CanFuseQkv(fused_, x)) {
        input.Make(inner);
        layer.attention.ForwardNormed(inner, fused_, rotary_, x, x);
      } else {
        layer.attention.Forward(inner, rotary_, input, adds ? residual : x, adds);
      }
      const NormedInput mlp_input{layer.mlp_norm, x, residual, !adds, layer.mlp.first_weight()};
      layer.mlp.Forward(inner, mlp_input, adds ? residual : x, adds);
    }
    if (norm_ && adds) {
      norm_->Forward(ctx, residual, x);
    } else if (norm_) {
      norm_->AddForward(inner, x, residual, x, head_->AsNext());
    } else {
      stage_.Pass(ctx, {&residual, &x});
    }
    return x;
  }

  const at::Tensor& Logits(const ForwardContext& ctx, const at::Tensor& hidden) override {
    return head_->Forward(ctx, hidden);
  }
  bool CanPick(int64_t rows) const override { return head_->CanPick(rows); }
  void Pick(const ForwardContext& ctx, const at::Tensor& hidden, int32_t* tokens) override {
    head_->Pick(ctx, hidden, tokens);
  }

 private:
  // Where the products of a layer add to the residual themselves. One rank has all of the model.
  bool AddsInProducts(const at::Tensor& x) const {
    return embed_ && norm_ && std::all_of(layers_.begin(), layers_.end(), [&x](const DecoderLayer& l) {
             return l.attention.CanAdd(x.size(0)) && l.mlp.CanAdd(x.size(0));
           });
  }
  // Where one rank holds all of the model.
  bool CanFuse(const at::Tensor& x) const {
    if (!fused_.available() || (x.is_cuda() && x.size(0) > kMostFusedRows)) return false;
    return std::all_of(layers_.begin(), layers_.end(),
                       [&x](const DecoderLayer& l) { return l.attention.CanFuse(x) && l.mlp.CanFuse(x); });
  }
  const at::Tensor& Gather(const ForwardContext& ctx, const at::Tensor& from, Scratch::Slot to) const {
    const at::Tensor& rows = ctx.scratch->Rows(to, ctx.wanted.count);
    if (ctx.wanted.count == 0) return rows;
    few_.gather({rows.data_ptr(), from.const_data_ptr(), ctx.wanted.tokens, ctx.wanted.count,
                 static_cast<int32_t>(from.size(1))},
                ctx.op);
    return rows;
  }
  const at::Tensor& Wanted(const ForwardContext& ctx, const at::Tensor& x) const {
    return ctx.wanted.some() ? Gather(ctx, x, few_.hidden) : x;
  }

  // The last layer and the norm, of the wanted tokens but for keys and values. `input` adds to the residual where the
  // products of the layer before have not.
  const at::Tensor& ForwardLast(const ForwardContext& ctx, const DecoderLayer& layer, const NormedInput& input) const {
    const at::Tensor& x = ctx.scratch->Rows(few_.hidden, ctx.wanted.count);
    layer.attention.ForwardWanted(ctx, rotary_, input, x);
    if (ctx.wanted.count == 0) return x;
    const at::Tensor& residual = Gather(ctx, input.residual, few_.residual);
    layer.mlp.Forward(ctx, NormedInput{layer.mlp_norm, x, residual, /*add=*/true, layer.mlp.first_weight()}, x);
    norm_->AddForward(ctx, x, residual, x, head_->AsNext());
    return x;
  }

  // What the product after layer i reads.
  ops::NextWeight WeightAfter(size_t i) const {
    return i + 1 < layers_.size() ? layers_[i + 1].attention.first_weight() : head_->AsNext();
  }

  const at::Tensor& ForwardFused(const ForwardContext& ctx, FusedStream stream) const {
    layers_.front().input_norm.Forward(ctx, stream.residual, stream.x);
    for (size_t i = 0; i < layers_.size(); ++i) {
      const DecoderLayer& layer = layers_[i];
      const DecoderLayer* const next = i + 1 < layers_.size() ? &layers_[i + 1] : nullptr;
      layer.attention.ForwardFused(ctx, fused_, rotary_, stream, {layer.mlp_norm.gain(), layer.mlp.first_weight()});
      stream.normed = false;
      layer.mlp.ForwardFused(ctx, fused_, stream,
                             {next == nullptr ? nullptr : next->input_norm.gain(), WeightAfter(i)});
    }
    norm_->Forward(ctx, stream.residual, stream.x);
    return stream.x;
  }

  Stage stage_;
  std::optional<Embedding> embed_;
  std::vector<DecoderLayer> layers_;
  Rotary rotary_;
  std::optional<RmsNorm> norm_;
  std::optional<VocabHead> head_;
  FusedOps fused_;
  Scratch::Slot squares_;
  Scratch::Slot residual_;
  Scratch::Slot hidden_;
  struct Few {
    ops::GatherRowsFn gather;
    Scratch::Slot residual;
    Scratch::Slot hidden;
  } few_;
};

}  // namespace

std::unique_ptr<Model> BuildDenseDecoder(const ModelConfig& config, Builder& builder) {
  return std::make_unique<DenseDecoder>(config, builder);
}

}  // namespace fastllm::runtime
