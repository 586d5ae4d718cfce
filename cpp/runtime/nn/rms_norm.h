#pragma once

#include <string>

#include "ops/contract/fp8.h"
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

  // residual += x; out = norm(residual). In place on residual; out may be x.
  void AddForward(const ForwardContext& ctx, const at::Tensor& x, const at::Tensor& residual,
                  const at::Tensor& out) const;

  // As the two above, the result in 8-bit floats; residual null: the first. Where the backend has it.
  bool has_fp8() const { return fp8_fn_ != nullptr; }
  void Fp8Forward(const ForwardContext& ctx, const at::Tensor& x, const at::Tensor* residual,
                  const ops::Fp8Rows& out) const;

 private:
  Param* weight_;
  float eps_;
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

  // Into x.
  void Make(const ForwardContext& ctx) const {
    add ? norm.AddForward(ctx, x, residual, x) : norm.Forward(ctx, residual, x);
  }
};

}  // namespace fastllm::runtime
