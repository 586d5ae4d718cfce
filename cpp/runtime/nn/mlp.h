#pragma once

#include <string>

#include "ops/contract/quant_linear.h"
#include "ops/contract/silu_mul.h"
#include "runtime/nn/builder.h"
#include "runtime/nn/context.h"
#include "runtime/nn/fused.h"
#include "runtime/nn/linear.h"

namespace fastllm::runtime {

// SwiGLU: down(silu(gate(x)) * up(x)) (Shazeer 2020). Modules: <path>.gate_up (parts gate, up) and <path>.down. Over
// several ranks each has a part of the intermediate values.
class GatedMlp {
 public:
  GatedMlp(Builder& b, const std::string& path, int32_t hidden, int32_t intermediate, bool bias);

  // x, out: [num_tokens, hidden]; out may be x.
  void Forward(const ForwardContext& ctx, const at::Tensor& x, const at::Tensor& out) const;
  // Of in.norm's result; out may be in.x. adds: to what out, another tensor than in.x, holds; where CanAdd().
  void Forward(const ForwardContext& ctx, const NormedInput& in, const at::Tensor& out, bool adds = false) const;
  bool CanAdd(int64_t rows) const { return down_.CanAdd(rows); }

  // The same with the norm before it and the residual add after it folded in. Where CanFuse(), x being an activation.
  bool CanFuse(const at::Tensor& x) const {
    return gate_up_.CanFuse(x) && gate_up_.bias_data() == nullptr && down_.CanFuse(x);
  }
  ops::NextWeight first_weight() const { return gate_up_.AsNext(); }
  void ForwardFused(const ForwardContext& ctx, const FusedOps& fused, const FusedStream& stream,
                    const FusedNext& next) const;

 private:
  GatedMlp(Builder& b, const std::string& path, int32_t hidden, Slice intermediate, bool bias);
  // From the result of gate_up.
  void Finish(const ForwardContext& ctx, const at::Tensor& gate_up, const at::Tensor& out, bool adds) const;
  void ForwardNormed(const ForwardContext& ctx, const at::Tensor& x, const at::Tensor& out, bool adds) const;
  void Down(const ForwardContext& ctx, const at::Tensor& act, const at::Tensor& out, bool adds) const {
    adds ? down_.ForwardAdd(ctx, act, out) : down_.Forward(ctx, act, out);
  }

  // The op that computes all of it from quantised weights, of so many rows, or null.
  ops::QuantMlpFn WholeOp(int32_t rows) const;
  void ForwardWhole(const ForwardContext& ctx, ops::QuantMlpFn op, const at::Tensor& x, const at::Tensor& out) const;

  Linear gate_up_;
  Linear down_;
  Scratch::Slot gate_up_slot_;
  Scratch::Slot act_slot_;
  ops::SiluMulFn silu_mul_;
  ops::SiluMulFp8Fn silu_mul_fp8_;  // null: the backend has none
  ops::QuantMlpFn wide_;            // likewise, or rows must not depend on their number
  ops::QuantMlpFn exact_;           // likewise
};

}  // namespace fastllm::runtime
