#include "runtime/nn/vocab_head.h"

#include <algorithm>

#include "ops/table/device.h"
#include "runtime/nn/talk.h"
#include "runtime/tensor/tensors.h"

namespace fastllm::runtime {
namespace {

// Columns [0, width) of every row of `from` to columns [first, first + width) of `to`. Both are contiguous float32.
void CopyColumns(const ops::OpContext& op, const at::Tensor& from, const at::Tensor& to, int64_t first, int64_t width) {
  const ops::DeviceApi& device = *ops::FindDevice(to.is_cuda() ? ops::Device::kCuda : ops::Device::kCpu);
  const size_t bytes = static_cast<size_t>(width) * sizeof(float);
  for (int64_t row = 0; row < from.size(0); ++row) {
    device.Copy(DataOf<float>(to) + row * to.size(1) + first, DataOf<const float>(from) + row * from.size(1), bytes,
                op.stream);
  }
}

}  // namespace

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
  const at::Tensor mine = RowsOf(parts, ranks_->rank() * rows, rows);
  if (const int64_t width = linear_.out_features(); width > 0) {
    const at::Tensor& own = ctx.scratch->Rows(own_, rows);
    linear_.Forward(ctx, hidden, own);
    CopyColumns(ctx.op, own, mine, 0, width);
  }
  ThrowIfError(
      ranks_->AllGather(ctx.op, mine.const_data_ptr(), parts.mutable_data_ptr(), rows * share_, CommType::kF32));
  for (int64_t r = 0; r * share_ < vocab_; ++r) {
    const int64_t width = std::min(share_, vocab_ - r * share_);
    CopyColumns(ctx.op, RowsOf(parts, r * rows, rows), logits, r * share_, width);
  }
  return logits;
}

}  // namespace fastllm::runtime
