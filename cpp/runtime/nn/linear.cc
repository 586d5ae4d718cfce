#include "runtime/nn/linear.h"

#include <string>
#include <utility>

#include "runtime/nn/talk.h"
#include "runtime/tensor/tensors.h"

namespace fastllm::runtime {
namespace {

// Values of the input that share a scale of their 8-bit rounding. SmolLM2's logits are 0.13 from float32's on average
// (0.48 at the 99th percentile) with 16 in all layers, 0.16 to 0.17 (0.67) with 32, and 0.15 (0.52 to 0.60 on the arms)
// with 16 where queries and keys come from, whose errors the softmax enlarges, and 32 elsewhere. 32 is a tenth faster,
// on AMX nearly twice.
constexpr int32_t kInputGroup = 32;
constexpr int32_t kFineInputGroup = 16;

}  // namespace

Linear::Linear(Builder& b, const std::string& path, std::vector<Slice> out_parts, Slice in, bool bias)
    : weight_(b.LinearMatrix(path + ".weight", out_parts, in)),
      batch_invariant_(b.batch_invariant()),
      linear_(b.Op<ops::LinearFn>(ops::OpId::kLinear)),
      quant_linear_(b.OptionalOp<ops::QuantLinearFn>(ops::OpId::kQuantLinear)),
      half_linear_(b.OptionalOp<ops::HalfLinearFn>(ops::OpId::kHalfLinear)),
      adding_(b.OptionalOp<ops::LinearFn>(ops::OpId::kLinear, ops::kFeatureAdds)) {
  if (in.size % 32 == 0) gated_.fn = b.OptionalOp<ops::LinearFn>(ops::OpId::kLinearSiluMul);
  gated_.many = gated_.fn != nullptr && out_parts[0].size % 16 == 0 &&
                b.OptionalOp<ops::LinearFn>(ops::OpId::kLinearSiluMul, ops::kFeatureAnyRows) != nullptr;
  if (!in.whole()) ranks_ = b.ranks().tensor;
  if (bias) bias_ = b.Bias(path + ".bias", std::move(out_parts));
  adds_bias_ = bias && (ranks_ == nullptr || b.tp_rank() == 0);
  if (!weight_->is_fp8) return;
  fp8_.quantize = b.Op<ops::QuantizeFp8Fn>(ops::OpId::kQuantizeFp8);
  fp8_.linear = b.Op<ops::Fp8LinearFn>(ops::OpId::kFp8Linear);
  fp8_.adding = b.OptionalOp<ops::Fp8LinearFn>(ops::OpId::kFp8Linear, ops::kFeatureAdds);
  if (!bias && ranks_ == nullptr && out_parts.size() == 2 && out_parts[0].size == out_parts[1].size &&
      out_parts[0].size % ops::kFp8Multiple == 0 && in.size % ops::kFp8Multiple == 0) {
    fp8_.gated = b.OptionalOp<ops::Fp8LinearSiluMulFn>(ops::OpId::kFp8LinearSiluMul);
  }
  // Bytes, in a buffer of float32.
  fp8_.rows = b.Float32Buffer("fp8_rows_" + std::to_string(in.size), (in.size + 3) / 4);
  fp8_.scales = b.Float32Buffer("fp8_scales", 1);
}

Linear::Linear(Builder& b, Param* weight)
    : weight_(weight),
      batch_invariant_(b.batch_invariant()),
      linear_(b.Op<ops::LinearFn>(ops::OpId::kLinear)),
      quant_linear_(b.OptionalOp<ops::QuantLinearFn>(ops::OpId::kQuantLinear)),
      half_linear_(b.OptionalOp<ops::HalfLinearFn>(ops::OpId::kHalfLinear)) {}

void Linear::ForwardPacked(const ForwardContext& ctx, const at::Tensor& x, const at::Tensor& y) const {
  ops::QuantLinearParams p;
  p.out = DataOf<float>(y);
  p.x = DataOf<const float>(x);
  p.parts = weight_->packed.data();
  p.bias = static_cast<const float*>(bias());
  p.num_parts = static_cast<int32_t>(weight_->packed.size());
  p.num_rows = static_cast<int32_t>(x.size(0));
  p.n = static_cast<int32_t>(y.size(1));
  p.k = static_cast<int32_t>(x.size(1));
  p.x_group = fine_input_ ? kFineInputGroup : kInputGroup;
  p.batch_invariant = batch_invariant_;
  quant_linear_(p, ctx.op);
}

void Linear::ForwardHalf(const ForwardContext& ctx, const at::Tensor& x, const at::Tensor& y) const {
  ops::HalfLinearParams p;
  p.out = DataOf<float>(y);
  p.x = DataOf<const float>(x);
  p.parts = weight_->halves.data();
  p.bias = static_cast<const float*>(bias());
  p.num_parts = static_cast<int32_t>(weight_->halves.size());
  p.num_rows = static_cast<int32_t>(x.size(0));
  p.n = static_cast<int32_t>(y.size(1));
  p.k = static_cast<int32_t>(x.size(1));
  half_linear_(p, ctx.op);
}

ops::LinearParams Linear::Params(const at::Tensor& x, const at::Tensor& y) const {
  ops::LinearParams p;
  p.out = y.mutable_data_ptr();
  p.x = x.const_data_ptr();
  p.weight = weight_->value.const_data_ptr();
  p.bias = bias();
  p.num_rows = static_cast<int32_t>(x.size(0));
  p.n = static_cast<int32_t>(y.size(1));
  p.k = static_cast<int32_t>(x.size(1));
  p.out_f32 = y.scalar_type() == at::kFloat;
  return p;
}

void Linear::Forward(const ForwardContext& ctx, const at::Tensor& x, const at::Tensor& y) const {
  if (weight_->is_fp8) {
    return ForwardFp8(ctx, RoundToFp8(ctx, x), y);
  }
  if (weight_->is_packed()) {
    ForwardPacked(ctx, x, y);
  } else if (weight_->is_half()) {
    ForwardHalf(ctx, x, y);
  } else {
    linear_(Params(x, y), ctx.op);
  }
  AddRanks(ctx, y);
}

ops::Fp8Rows Linear::RoundToFp8(const ForwardContext& ctx, const at::Tensor& x) const {
  ops::QuantizeFp8Params q;
  q.out = Fp8Input(ctx, x.size(0));
  q.x = x.const_data_ptr();
  q.num_rows = static_cast<int32_t>(x.size(0));
  q.k = static_cast<int32_t>(x.size(1));
  fp8_.quantize(q, ctx.op);
  return q.out;
}

void Linear::ForwardAdd(const ForwardContext& ctx, const at::Tensor& x, const at::Tensor& y) const {
  if (weight_->is_fp8) return ForwardFp8(ctx, RoundToFp8(ctx, x), y, /*adds=*/true);
  ops::LinearParams p = Params(x, y);
  p.adds = true;
  adding_(p, ctx.op);
}

void Linear::AddRanks(const ForwardContext& ctx, const at::Tensor& y) const {
  if (!ctx.defers_sums) return SumOverRanks(ranks_, ctx.op, y);
  if (ranks_ == nullptr || !ctx.piece.some()) return;
  ThrowIfError(ranks_->BeginSumNorm(ctx.op, ctx.piece, y.const_data_ptr(), y.size(0), y.size(1), CommTypeOf(y)));
}

void Linear::Forward(const ForwardContext& ctx, const NormedInput& in, const at::Tensor& y) const {
  if (!weight_->is_fp8 || !in.norm.has_fp8() || (in.add && ctx.defers_sums)) {
    in.Make(ctx);
    return Forward(ctx, in.x, y);
  }
  ForwardFp8(ctx, NormToFp8(ctx, in, y.size(0)), y);
}

ops::Fp8Rows Linear::NormToFp8(const ForwardContext& ctx, const NormedInput& in, int64_t rows) const {
  const ops::Fp8Rows q = Fp8Input(ctx, rows);
  in.norm.Fp8Forward(ctx, in.add ? in.x : in.residual, in.add ? &in.residual : nullptr, q);
  return q;
}

ops::Fp8Rows Linear::Fp8Input(const ForwardContext& ctx, int64_t rows) const {
  return {static_cast<uint8_t*>(ctx.scratch->Rows(fp8_.rows, rows).data_ptr()),
          DataOf<float>(ctx.scratch->Rows(fp8_.scales, rows))};
}

ops::Fp8LinearParams Linear::Fp8Params(const ops::Fp8Rows& x, const at::Tensor& y) const {
  ops::Fp8LinearParams p;
  p.out = y.data_ptr();
  p.x = x;
  p.weight = {static_cast<uint8_t*>(weight_->value.data_ptr()), DataOf<float>(weight_->scale)};
  p.bias = adds_bias_ ? bias_->value.const_data_ptr() : nullptr;
  p.num_rows = static_cast<int32_t>(y.size(0));
  p.n = static_cast<int32_t>(y.size(1));
  p.k = static_cast<int32_t>(weight_->cols.size);
  return p;
}

void Linear::ForwardFp8(const ForwardContext& ctx, const ops::Fp8Rows& x, const at::Tensor& y, bool adds) const {
  ops::Fp8LinearParams p = Fp8Params(x, y);
  p.adds = adds;
  (adds ? fp8_.adding : fp8_.linear)(p, ctx.op);
  AddRanks(ctx, y);
}

void Linear::ForwardFp8Gated(const ForwardContext& ctx, const NormedInput& in, const at::Tensor& y) const {
  const int64_t rows = y.size(0);
  ops::Fp8Rows x;
  if (in.norm.has_fp8() && !(in.add && ctx.defers_sums)) {
    x = NormToFp8(ctx, in, rows);
  } else {
    in.Make(ctx);
    x = RoundToFp8(ctx, in.x);
  }
  fp8_.gated(Fp8Params(x, y), ctx.op);
}

void Linear::ForwardGated(const ForwardContext& ctx, const at::Tensor& x, const at::Tensor& y) const {
  gated_.fn(Params(x, y), ctx.op);
}

bool Linear::CanFuse(const at::Tensor& x) const {
  return !weight_->is_packed() && !weight_->is_half() && !weight_->is_fp8 &&
         weight_->value.scalar_type() == x.scalar_type() && weight_->rows() % 8 == 0 && weight_->cols.size % 32 == 0;
}

ops::NextWeight Linear::AsNext() const {
  if (!weight_->value.defined()) return {};
  return {weight_->value.const_data_ptr(), static_cast<int64_t>(weight_->value.nbytes())};
}

void Linear::NormForward(const ForwardContext& ctx, const FusedOps& fused, const FusedStream& in, const at::Tensor& y,
                         bool gated, const ops::NextWeight& next) const {
  ops::NormLinearParams p;
  p.next = next;
  p.out = y.data_ptr();
  p.in = in.Rows();
  p.weight = weight_data();
  p.bias = bias_data();
  p.num_rows = static_cast<int32_t>(y.size(0));
  p.n = static_cast<int32_t>(y.size(1));
  p.k = static_cast<int32_t>(weight_->cols.size);
  p.gated = gated;
  fused.norm_linear(p, ctx.op);
}

void Linear::AddForward(const ForwardContext& ctx, const FusedOps& fused, const at::Tensor& x, const FusedStream& out,
                        const FusedNext& next) const {
  ops::LinearAddParams p;
  p.next = next.weight;
  p.residual = out.residual.data_ptr();
  p.x = x.const_data_ptr();
  p.weight = weight_data();
  p.bias = bias_data();
  p.gain = next.gain;
  p.scaled = next.gain == nullptr ? nullptr : out.x.data_ptr();
  p.squares = next.gain == nullptr ? nullptr : DataOf<float>(out.squares);
  p.num_rows = static_cast<int32_t>(x.size(0));
  p.n = static_cast<int32_t>(weight_->rows());
  p.k = static_cast<int32_t>(weight_->cols.size);
  fused.linear_add(p, ctx.op);
}

}  // namespace fastllm::runtime
