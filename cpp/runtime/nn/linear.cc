#include "runtime/nn/linear.h"

#include <string>
#include <utility>

namespace fastllm::runtime {
namespace {

// Values of the input that share a scale of their 8-bit rounding. With 32, logits of SmolLM2 are 0.17 from float32's on
// average and 0.67 at the 99th percentile, with 16 about a quarter less, for a tenth of the arithmetic of a large
// batch.
constexpr int32_t kInputGroup = 16;

}  // namespace

Linear::Linear(Builder& b, const std::string& path, std::vector<int64_t> out_parts, int64_t in, bool bias)
    : weight_(b.LinearMatrix(path + ".weight", out_parts, in)),
      linear_(b.Op<ops::LinearFn>(ops::OpId::kLinear)),
      quant_linear_(b.OptionalOp<ops::QuantLinearFn>(ops::OpId::kQuantLinear)),
      half_linear_(b.OptionalOp<ops::HalfLinearFn>(ops::OpId::kHalfLinear)),
      gated_(in % 32 == 0 ? b.OptionalOp<ops::LinearFn>(ops::OpId::kLinearSiluMul) : nullptr) {
  if (bias) bias_ = b.Bias(path + ".bias", std::move(out_parts));
  if (!weight_->is_fp8) return;
  fp8_.quantize = b.Op<ops::QuantizeFp8Fn>(ops::OpId::kQuantizeFp8);
  fp8_.linear = b.Op<ops::Fp8LinearFn>(ops::OpId::kFp8Linear);
  // Bytes, in a buffer of float32.
  fp8_.rows = b.Float32Buffer("fp8_rows_" + std::to_string(in), (in + 3) / 4);
  fp8_.scales = b.Float32Buffer("fp8_scales", 1);
}

Linear::Linear(Builder& b, Param* weight)
    : weight_(weight),
      linear_(b.Op<ops::LinearFn>(ops::OpId::kLinear)),
      quant_linear_(b.OptionalOp<ops::QuantLinearFn>(ops::OpId::kQuantLinear)),
      half_linear_(b.OptionalOp<ops::HalfLinearFn>(ops::OpId::kHalfLinear)),
      gated_(nullptr) {}

void Linear::ForwardPacked(const ForwardContext& ctx, const at::Tensor& x, const at::Tensor& y) const {
  ops::QuantLinearParams p;
  p.out = y.mutable_data_ptr<float>();
  p.x = x.const_data_ptr<float>();
  p.parts = weight_->packed.data();
  p.bias = bias_ == nullptr ? nullptr : bias_->value.const_data_ptr<float>();
  p.num_parts = static_cast<int32_t>(weight_->packed.size());
  p.num_rows = static_cast<int32_t>(x.size(0));
  p.n = static_cast<int32_t>(y.size(1));
  p.k = static_cast<int32_t>(x.size(1));
  p.x_group = kInputGroup;
  quant_linear_(p, ctx.op);
}

void Linear::ForwardHalf(const ForwardContext& ctx, const at::Tensor& x, const at::Tensor& y) const {
  ops::HalfLinearParams p;
  p.out = y.mutable_data_ptr<float>();
  p.x = x.const_data_ptr<float>();
  p.parts = weight_->halves.data();
  p.bias = bias_ == nullptr ? nullptr : bias_->value.const_data_ptr<float>();
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
  p.bias = bias_ == nullptr ? nullptr : bias_->value.const_data_ptr();
  p.num_rows = static_cast<int32_t>(x.size(0));
  p.n = static_cast<int32_t>(y.size(1));
  p.k = static_cast<int32_t>(x.size(1));
  p.out_f32 = y.scalar_type() == at::kFloat;
  return p;
}

void Linear::Forward(const ForwardContext& ctx, const at::Tensor& x, const at::Tensor& y) const {
  if (weight_->is_packed()) return ForwardPacked(ctx, x, y);
  if (weight_->is_half()) return ForwardHalf(ctx, x, y);
  if (!weight_->is_fp8) return linear_(Params(x, y), ctx.op);
  ops::QuantizeFp8Params q;
  q.out = Fp8Input(ctx, x.size(0));
  q.x = x.const_data_ptr();
  q.num_rows = static_cast<int32_t>(x.size(0));
  q.k = static_cast<int32_t>(x.size(1));
  fp8_.quantize(q, ctx.op);
  ForwardFp8(ctx, q.out, y);
}

void Linear::Forward(const ForwardContext& ctx, const NormedInput& in, const at::Tensor& y) const {
  if (!weight_->is_fp8 || !in.norm.has_fp8()) {
    in.Make(ctx);
    return Forward(ctx, in.x, y);
  }
  const ops::Fp8Rows rows = Fp8Input(ctx, y.size(0));
  in.norm.Fp8Forward(ctx, in.add ? in.x : in.residual, in.add ? &in.residual : nullptr, rows);
  ForwardFp8(ctx, rows, y);
}

ops::Fp8Rows Linear::Fp8Input(const ForwardContext& ctx, int64_t rows) const {
  return {static_cast<uint8_t*>(ctx.scratch->Rows(fp8_.rows, rows).data_ptr()),
          ctx.scratch->Rows(fp8_.scales, rows).data_ptr<float>()};
}

void Linear::ForwardFp8(const ForwardContext& ctx, const ops::Fp8Rows& x, const at::Tensor& y) const {
  ops::Fp8LinearParams p;
  p.out = y.data_ptr();
  p.x = x;
  p.weight = {static_cast<uint8_t*>(weight_->value.data_ptr()), weight_->scale.data_ptr<float>()};
  p.bias = bias_ == nullptr ? nullptr : bias_->value.const_data_ptr();
  p.num_rows = static_cast<int32_t>(y.size(0));
  p.n = static_cast<int32_t>(y.size(1));
  p.k = static_cast<int32_t>(weight_->cols);
  fp8_.linear(p, ctx.op);
}

void Linear::ForwardGated(const ForwardContext& ctx, const at::Tensor& x, const at::Tensor& y) const {
  gated_(Params(x, y), ctx.op);
}

}  // namespace fastllm::runtime
