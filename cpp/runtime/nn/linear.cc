#include "runtime/nn/linear.h"

#include <utility>

#include "runtime/nn/talk.h"

namespace fastllm::runtime {
namespace {

// Values of the input that share a scale of their 8-bit rounding. With 32, logits of SmolLM2 are 0.17 from float32's on
// average and 0.67 at the 99th percentile, with 16 about a quarter less, for a tenth of the arithmetic of a large
// batch.
constexpr int32_t kInputGroup = 16;

}  // namespace

Linear::Linear(Builder& b, const std::string& path, std::vector<Slice> out_parts, Slice in, bool bias)
    : weight_(b.Matrix(path + ".weight", out_parts, in)),
      linear_(b.Op<ops::LinearFn>(ops::OpId::kLinear)),
      quant_linear_(b.OptionalOp<ops::QuantLinearFn>(ops::OpId::kQuantLinear)),
      gated_(in.size % 32 == 0 ? b.OptionalOp<ops::LinearFn>(ops::OpId::kLinearSiluMul) : nullptr) {
  if (!in.whole()) ranks_ = b.ranks().tensor;
  if (bias) bias_ = b.Bias(path + ".bias", std::move(out_parts));
  adds_bias_ = bias && (ranks_ == nullptr || b.tp_rank() == 0);
}

Linear::Linear(Builder& b, Param* weight)
    : weight_(weight),
      linear_(b.Op<ops::LinearFn>(ops::OpId::kLinear)),
      quant_linear_(b.OptionalOp<ops::QuantLinearFn>(ops::OpId::kQuantLinear)),
      gated_(nullptr) {}

void Linear::ForwardPacked(const ForwardContext& ctx, const at::Tensor& x, const at::Tensor& y) const {
  ops::QuantLinearParams p;
  p.out = y.mutable_data_ptr<float>();
  p.x = x.const_data_ptr<float>();
  p.parts = weight_->packed.data();
  p.bias = static_cast<const float*>(bias());
  p.num_parts = static_cast<int32_t>(weight_->packed.size());
  p.num_rows = static_cast<int32_t>(x.size(0));
  p.n = static_cast<int32_t>(y.size(1));
  p.k = static_cast<int32_t>(x.size(1));
  p.x_group = kInputGroup;
  quant_linear_(p, ctx.op);
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
  if (weight_->is_packed()) {
    ForwardPacked(ctx, x, y);
  } else {
    linear_(Params(x, y), ctx.op);
  }
  SumOverRanks(ranks_, ctx.op, y);
}

void Linear::ForwardGated(const ForwardContext& ctx, const at::Tensor& x, const at::Tensor& y) const {
  gated_(Params(x, y), ctx.op);
}

}  // namespace fastllm::runtime
