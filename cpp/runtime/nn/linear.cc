#include "runtime/nn/linear.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/addmv.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mv.h>
#include <ATen/ops/select.h>
#include <ATen/ops/t.h>

#include <utility>

namespace fastllm::runtime {

Linear::Linear(Builder& b, const std::string& path, std::vector<int64_t> out_parts, int64_t in, bool bias)
    : weight_(b.Matrix(path + ".weight", out_parts, in)) {
  if (bias) bias_ = b.Bias(path + ".bias", std::move(out_parts));
}

Linear::Linear(Builder&, Param* weight) : weight_(weight) {}

void Linear::Forward(const ForwardContext&, const at::Tensor& x, const at::Tensor& y) const {
  if (x.size(0) == 1) {
    // As fast as the GEMM on one thread; on two threads of a busy machine it took half the time.
    at::Tensor out = y.select(0, 0);
    if (bias_ != nullptr) {
      at::addmv_out(out, bias_->value, weight_->value, x.select(0, 0));
    } else {
      at::mv_out(out, weight_->value, x.select(0, 0));
    }
    return;
  }
  at::Tensor out = y;
  if (bias_ != nullptr) {
    at::addmm_out(out, bias_->value, x, weight_->value.t());
  } else {
    at::mm_out(out, x, weight_->value.t());
  }
}

}  // namespace fastllm::runtime
