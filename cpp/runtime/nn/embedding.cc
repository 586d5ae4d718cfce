#include "runtime/nn/embedding.h"

namespace fastllm::runtime {

Embedding::Embedding(Builder& b, const std::string& path, int32_t vocab, int32_t hidden)
    : weight_(b.Matrix(path + ".weight", {vocab}, hidden)),
      fn_(b.Op<ops::EmbeddingFn>(ops::OpId::kEmbedding)),
      quant_fn_(b.OptionalOp<ops::QuantEmbeddingFn>(ops::OpId::kQuantEmbedding)),
      half_fn_(b.OptionalOp<ops::HalfEmbeddingFn>(ops::OpId::kHalfEmbedding)) {}

void Embedding::Forward(const ForwardContext& ctx, const at::Tensor& out) const {
  if (weight_->is_packed()) {
    return quant_fn_({out.data_ptr<float>(), weight_->packed[0], ctx.input.ids, ctx.input.num_tokens}, ctx.op);
  }
  if (weight_->is_half()) {
    return half_fn_({out.data_ptr<float>(), weight_->halves[0], ctx.input.ids, ctx.input.num_tokens}, ctx.op);
  }
  ops::EmbeddingParams p;
  p.out = out.data_ptr();
  p.table = weight_->value.const_data_ptr();
  p.ids = ctx.input.ids;
  p.num_tokens = ctx.input.num_tokens;
  p.hidden = static_cast<int32_t>(weight_->cols);
  p.vocab = static_cast<int32_t>(weight_->rows());
  fn_(p, ctx.op);
}

}  // namespace fastllm::runtime
