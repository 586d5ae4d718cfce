#include "runtime/nn/vocab_head.h"

#include <ATen/ops/narrow.h>

#include <algorithm>

#include "runtime/nn/talk.h"

namespace fastllm::runtime {

VocabHead::VocabHead(Builder& b, const std::string& path, int64_t vocab, int64_t hidden)
    : VocabHead(b, b.Matrix(path + ".weight", {b.UnevenShare(vocab)}, hidden), vocab) {}

VocabHead::VocabHead(Builder& b, Param* embedding, int64_t vocab)
    : vocab_(vocab),
      share_(b.PaddedShare(vocab)),
      ranks_(b.ranks().tensor),
      linear_(b, embedding),
      logits_(b.Float32Buffer("logits", vocab)) {
  if (ranks_ == nullptr) return;
  own_ = b.Float32Buffer("own_logits", std::max<int64_t>(1, embedding->rows()));
  parts_ = b.Float32Buffer("logits_of_ranks", share_);
}

const at::Tensor& VocabHead::Forward(const ForwardContext& ctx, const at::Tensor& hidden) const {
  const int64_t rows = hidden.size(0);
  const at::Tensor& logits = ctx.scratch->Rows(logits_, rows);
  if (ranks_ == nullptr) {
    linear_.Forward(ctx, hidden, logits);
    return logits;
  }
  const int64_t size = ranks_->size();
  const at::Tensor& parts = ctx.scratch->Rows(parts_, size * rows);
  const at::Tensor mine = parts.narrow(0, ranks_->rank() * rows, rows);
  if (const int64_t width = linear_.out_features(); width > 0) {
    const at::Tensor& own = ctx.scratch->Rows(own_, rows);
    linear_.Forward(ctx, hidden, own);
    mine.narrow(1, 0, width).copy_(own);
  }
  ThrowIfError(
      ranks_->AllGather(ctx.op, mine.const_data_ptr(), parts.mutable_data_ptr(), rows * share_, CommType::kF32));
  for (int64_t r = 0; r * share_ < vocab_; ++r) {
    const int64_t width = std::min(share_, vocab_ - r * share_);
    logits.narrow(1, r * share_, width).copy_(parts.narrow(0, r * rows, rows).narrow(1, 0, width));
  }
  return logits;
}

}  // namespace fastllm::runtime
