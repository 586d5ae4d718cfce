#include "runtime/nn/rms_norm.h"

#include "runtime/nn/pieces.h"
#include "runtime/nn/talk.h"

namespace fastllm::runtime {
namespace {

ops::RmsNormParams Params(const Param& weight, float eps, const at::Tensor& x, const at::Tensor& out) {
  ops::RmsNormParams p;
  p.out = out.data_ptr();
  p.x = x.const_data_ptr();
  p.weight = weight.value.const_data_ptr();
  p.num_tokens = static_cast<int32_t>(x.size(0));
  p.hidden = static_cast<int32_t>(weight.rows());
  p.eps = eps;
  return p;
}

}  // namespace

RmsNorm::RmsNorm(Builder& b, const std::string& path, int32_t hidden, float eps)
    : weight_(b.Norm(path + ".weight", hidden)),
      eps_(eps),
      ranks_(b.ranks().tensor),
      fn_(b.Op<ops::RmsNormFn>(ops::OpId::kRmsNorm)),
      fp8_fn_(b.OptionalOp<ops::RmsNormFp8Fn>(ops::OpId::kRmsNormFp8)) {}

void RmsNorm::Forward(const ForwardContext& ctx, const at::Tensor& x, const at::Tensor& out) const {
  fn_(Params(*weight_, eps_, x, out), ctx.op);
}

void RmsNorm::AddForward(const ForwardContext& ctx, const at::Tensor& x, const at::Tensor& residual,
                         const at::Tensor& out, const ops::NextWeight& next) const {
  if (InPieces(ctx, x.size(0), [&](const ForwardContext& piece, int64_t first, int64_t rows) {
        AddForward(piece, RowsOf(x, first, rows), RowsOf(residual, first, rows), RowsOf(out, first, rows));
      })) {
    return;
  }
  ops::RmsNormParams p = Params(*weight_, eps_, x, out);
  p.residual = residual.data_ptr();
  if (ctx.piece.some()) return ThrowIfError(ranks_->EndSumNorm(ctx.op, ctx.piece, p, CommTypeOf(x)));
  if (ctx.defers_sums) return ThrowIfError(ranks_->AllReduceNorm(ctx.op, p, CommTypeOf(x), next));
  fn_(p, ctx.op);
}

void RmsNorm::DeferSums(ForwardContext* ctx, const at::Tensor& x) const {
  if (ranks_ == nullptr) return;
  const CommType type = CommTypeOf(x);
  // A last layer of the rows that sample has other rows than a cut has.
  if (ctx->cuts_sums && !ctx->wanted.some()) ctx->first_piece = ranks_->FirstPiece(x.size(0), weight_->rows(), type);
  ctx->defers_sums = ctx->first_piece > 0 || ranks_->HasSumNorm(x.size(0), weight_->rows(), type);
}

void RmsNorm::Fp8Forward(const ForwardContext& ctx, const at::Tensor& x, const at::Tensor* residual,
                         const ops::Fp8Rows& out) const {
  ops::RmsNormParams p = Params(*weight_, eps_, x, x);
  p.out = nullptr;
  p.residual = residual == nullptr ? nullptr : residual->data_ptr();
  fp8_fn_(p, out, ctx.op);
}

}  // namespace fastllm::runtime
