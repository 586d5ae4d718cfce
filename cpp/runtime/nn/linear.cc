#include "runtime/nn/linear.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/t.h>

#include <utility>

namespace fastllm::runtime {

Linear::Linear(Builder& b, const std::string& path, std::vector<int64_t> out_parts, int64_t in, bool bias)
    : weight_(b.Matrix(path + ".weight", out_parts, in)) {
  if (bias) bias_ = b.Bias(path + ".bias", std::move(out_parts));
}

Linear::Linear(Builder&, Param* weight) : weight_(weight) {}

void Linear::Forward(const ForwardContext&, const at::Tensor& x, const at::Tensor& y) const {
  at::Tensor out = y;
  if (bias_ != nullptr) {
    at::addmm_out(out, bias_->value, x, weight_->value.t());
  } else {
    at::mm_out(out, x, weight_->value.t());
  }
}

}  // namespace fastllm::runtime
