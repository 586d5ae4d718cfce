#pragma once

#include <memory>
#include <string>

#include "ops/contract/fp8.h"
#include "ops/contract/fused_linear.h"
#include "ops/contract/rms_norm.h"
#include "runtime/nn/builder.h"
#include "runtime/nn/context.h"

namespace fastllm::runtime {

// Root-mean-square norm with a learnt scale. Parameter: <path>.weight [hidden].
class RmsNorm {
 public:
  RmsNorm(Builder& b, const std::string& path, int32_t hidden, float eps);

  // out = norm(x); out may be x. [rows, hidden]
  void Forward(const ForwardContext& ctx, const at::Tensor& x, const at::Tensor& out) const;

  // residual += x; out = norm(residual). In place on residual; out may be x. Where the context defers sums, x is this
  // rank's part and what is added is the sum over the ranks; `next` is the weight of the product that comes then.
  void AddForward(const ForwardContext& ctx, const at::Tensor& x, const at::Tensor& residual, const at::Tensor& out,
                  const ops::NextWeight& next = {}) const;

  // Lets the context defer sums of activations like x, and cut them, where the ranks have them with a norm. The same
  // for all norms of a model.
  void DeferSums(ForwardContext* ctx, const at::Tensor& x) const;

  const void* gain() const { return weight_->value.const_data_ptr(); }
  float eps() const { return eps_; }
  // As the two above, the result in 8-bit floats; residual null: the first. Where the backend has it.
  bool has_fp8() const { return fp8_fn_ != nullptr; }
  void Fp8Forward(const ForwardContext& ctx, const at::Tensor& x, const at::Tensor* residual,
                  const ops::Fp8Rows& out) const;

 private:
  Param* weight_;
  float eps_;
  std::shared_ptr<Communicator> ranks_;
  ops::RmsNormFn fn_;
  ops::RmsNormFp8Fn fp8_fn_;
};

// The normalised input of a block's first layer, made where that layer wants it: norm(residual), or with `add`
// residual += x first. x holds the result where it is not made in another form.
struct NormedInput {
  const RmsNorm& norm;
  const at::Tensor& x;
  const at::Tensor& residual;
  bool add;
  ops::NextWeight next = {};

  // Into x.
  void Make(const ForwardContext& ctx) const {
    add ? norm.AddForward(ctx, x, residual, x, next) : norm.Forward(ctx, residual, x);
  }
};

}  // namespace fastllm::runtime
