#include "runtime/nn/vocab_head.h"

#include <algorithm>

#include "ops/table/device.h"
#include "runtime/nn/talk.h"
#include "runtime/tensor/tensors.h"

namespace fastllm::runtime {
namespace {

constexpr int64_t kLeastPickedRows = 4;       // fewer rows of logits stay in cache on their way to the sampler
constexpr uintptr_t kProductAlignment = 256;  // bytes: what cuBLASLt takes results to have

// Columns [0, width) of every row of `from` to columns [first, first + width) of `to`. Both are contiguous float32.
void CopyColumns(const ops::OpContext& op, const at::Tensor& from, const at::Tensor& to, int64_t first, int64_t width) {
  const ops::DeviceApi& device = *ops::FindDevice(to.is_cuda() ? ops::Device::kCuda : ops::Device::kCpu);
  const auto bytes = [](int64_t columns) { return static_cast<size_t>(columns) * sizeof(float); };
  device.CopyRows(DataOf<float>(to) + first, bytes(to.size(1)), DataOf<const float>(from), bytes(from.size(1)),
                  bytes(width), static_cast<size_t>(from.size(0)), op.stream);
}

}  // namespace

VocabHead::VocabHead(Builder& b, const std::string& path, int64_t vocab, int64_t hidden)
    : VocabHead(b, b.Matrix(path + ".weight", {b.UnevenShare(vocab)}, hidden), vocab) {}

VocabHead::VocabHead(Builder& b, Param* embedding, int64_t vocab)
    : vocab_(vocab),
      share_(b.PaddedShare(vocab)),
      ranks_(b.ranks().tensor),
      linear_(b, embedding),
      pick_(b.OptionalOp<ops::QuantPickFn>(ops::OpId::kQuantPick)),
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
  const at::Tensor& own = ctx.scratch->Rows(own_, rows);  // also where it is not needed, so that it has its size
  const bool aligned = reinterpret_cast<uintptr_t>(mine.const_data_ptr()) % kProductAlignment == 0;
  if (const int64_t width = linear_.out_features(); width == share_ && aligned) {
    linear_.Forward(ctx, hidden, mine);
  } else if (width > 0) {
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

bool VocabHead::CanPick(int64_t rows) const {
  if (ranks_ != nullptr) return ranks_->HasArgmax(rows);
  return pick_ != nullptr && rows >= kLeastPickedRows && linear_.packed().size() == 1 && !linear_.has_bias() &&
         linear_.batch_invariant();
}

void VocabHead::Pick(const ForwardContext& ctx, const at::Tensor& hidden, int32_t* tokens) const {
  const auto rows = static_cast<int32_t>(hidden.size(0));
  if (ranks_ == nullptr) {
    const ops::QuantWeight& weight = linear_.packed().front();
    pick_({tokens, DataOf<const float>(hidden), &weight, rows, weight.n, weight.k}, ctx.op);
    return;
  }
  const at::Tensor& own = ctx.scratch->Rows(own_, rows);
  const auto width = static_cast<int32_t>(linear_.out_features());
  if (width > 0) linear_.Forward(ctx, hidden, own);
  const auto first_id = static_cast<int32_t>(share_ * ranks_->rank());
  ThrowIfError(ranks_->Argmax(ctx.op, {DataOf<const float>(own), tokens, own.size(1), rows, width, first_id}));
}

}  // namespace fastllm::runtime
