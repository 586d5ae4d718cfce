#pragma once

#include <string>

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

  const void* gain() const { return weight_->value.const_data_ptr(); }
  float eps() const { return eps_; }

 private:
  Param* weight_;
  float eps_;
  ops::RmsNormFn fn_;
};

}  // namespace fastllm::runtime
