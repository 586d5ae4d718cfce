#include "runtime/nn/embedding.h"

#include <algorithm>
#include <vector>

#include "runtime/nn/talk.h"
#include "runtime/tensor/tensors.h"

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
    p.out = DataOf<float>(out);
    p.table = weight_->packed[0];
    p.ids = ctx.input.ids;
    p.num_tokens = ctx.input.num_tokens;
    p.first_id = static_cast<int32_t>(weight_->parts[0].begin);
    p.num_ids = vocab_;
    quant_fn_(p, ctx.op);
  } else if (weight_->is_half()) {
    ForwardHalf(ctx, out);
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

// The op takes whole tables: rows of other ranks are fetched as some row of this one, and become zeros.
void Embedding::ForwardHalf(const ForwardContext& ctx, const at::Tensor& out) const {
  const ops::HalfWeight& table = weight_->halves[0];
  const int32_t count = ctx.input.num_tokens;
  auto* const to = DataOf<float>(out);
  if (weight_->whole()) return half_fn_({to, table, ctx.input.ids, count}, ctx.op);
  const auto first = static_cast<int32_t>(weight_->parts[0].begin);
  const auto is_here = [&](int32_t id) { return id >= first && id < first + table.n; };
  std::vector<int32_t> ids(static_cast<size_t>(count));
  std::transform(ctx.input.ids, ctx.input.ids + count, ids.begin(),
                 [&](int32_t id) { return is_here(id) ? id - first : 0; });
  if (table.n > 0) half_fn_({to, table, ids.data(), count}, ctx.op);
  for (int32_t t = 0; t < count; ++t) {
    if (!is_here(ctx.input.ids[t])) std::fill_n(to + int64_t{t} * table.k, table.k, 0.0f);
  }
}

}  // namespace fastllm::runtime
