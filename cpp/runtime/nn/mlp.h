#pragma once

#include <string>

#include "ops/contract/silu_mul.h"
#include "runtime/nn/builder.h"
#include "runtime/nn/context.h"
#include "runtime/nn/linear.h"

namespace fastllm::runtime {

// SwiGLU: down(silu(gate(x)) * up(x)) (Shazeer 2020). Modules: <path>.gate_up (parts gate, up) and <path>.down.
class GatedMlp {
 public:
  GatedMlp(Builder& b, const std::string& path, int32_t hidden, int32_t intermediate, bool bias);

  // x, out: [num_tokens, hidden]; out may be x.
  void Forward(const ForwardContext& ctx, const at::Tensor& x, const at::Tensor& out) const;
  // Of in.norm's result; out may be in.x.
  void Forward(const ForwardContext& ctx, const NormedInput& in, const at::Tensor& out) const;

 private:
  // From the result of gate_up.
  void Finish(const ForwardContext& ctx, const at::Tensor& gate_up, const at::Tensor& out) const;

  Linear gate_up_;
  Linear down_;
  Scratch::Slot gate_up_slot_;
  Scratch::Slot act_slot_;
  ops::SiluMulFn silu_mul_;
  ops::SiluMulFp8Fn silu_mul_fp8_;  // null: the backend has none
};

}  // namespace fastllm::runtime
