#include "runtime/nn/embedding.h"

#include "runtime/nn/talk.h"

namespace fastllm::runtime {

Embedding::Embedding(Builder& b, const std::string& path, int32_t vocab, int32_t hidden)
    : weight_(b.Matrix(path + ".weight", {b.UnevenShare(vocab)}, hidden)),
      vocab_(vocab),
      ranks_(b.ranks().tensor),
      fn_(b.Op<ops::EmbeddingFn>(ops::OpId::kEmbedding)),
      quant_fn_(b.OptionalOp<ops::QuantEmbeddingFn>(ops::OpId::kQuantEmbedding)),
      half_fn_(b.OptionalOp<ops::HalfEmbeddingFn>(ops::OpId::kHalfEmbedding)) {}

void Embedding::Forward(const ForwardContext& ctx, const at::Tensor& out) const {
  if (weight_->is_packed()) {
    ops::QuantEmbeddingParams p;
    p.out = out.data_ptr<float>();
    p.table = weight_->packed[0];
    p.ids = ctx.input.ids;
    p.num_tokens = ctx.input.num_tokens;
    p.first_id = static_cast<int32_t>(weight_->parts[0].begin);
    p.num_ids = vocab_;
    quant_fn_(p, ctx.op);
  } else if (weight_->is_half()) {  // the whole table
    return half_fn_({out.data_ptr<float>(), weight_->halves[0], ctx.input.ids, ctx.input.num_tokens}, ctx.op);
  } else {
    ops::EmbeddingParams p;
    p.out = out.data_ptr();
    p.table = weight_->value.const_data_ptr();
    p.ids = ctx.input.ids;
    p.num_tokens = ctx.input.num_tokens;
    p.hidden = static_cast<int32_t>(weight_->cols.size);
    p.vocab = static_cast<int32_t>(weight_->rows());
    p.first_id = static_cast<int32_t>(weight_->parts[0].begin);
    p.num_ids = vocab_;
    fn_(p, ctx.op);
  }
  SumOverRanks(ranks_, ctx.op, out);
}

}  // namespace fastllm::runtime
