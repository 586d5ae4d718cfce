#include "runtime/nn/mlp.h"

namespace fastllm::runtime {

GatedMlp::GatedMlp(Builder& b, const std::string& path, int32_t hidden, int32_t intermediate, bool bias)
    : gate_up_(b, path + ".gate_up", {intermediate, intermediate}, hidden, bias),
      down_(b, path + ".down", {hidden}, intermediate, bias),
      gate_up_slot_(b.Buffer("gate_up", 2 * int64_t{intermediate})),
      act_slot_(b.Buffer("mlp_act", intermediate)),
      silu_mul_(b.Op<ops::SiluMulFn>(ops::OpId::kSiluMul)),
      silu_mul_fp8_(b.OptionalOp<ops::SiluMulFp8Fn>(ops::OpId::kSiluMulFp8)) {}

void GatedMlp::Forward(const ForwardContext& ctx, const at::Tensor& x, const at::Tensor& out) const {
  const int32_t rows = static_cast<int32_t>(x.size(0));
  if (gate_up_.CanGate(rows)) {
    const at::Tensor& act = ctx.scratch->Rows(act_slot_, rows);
    gate_up_.ForwardGated(ctx, x, act);
    down_.Forward(ctx, act, out);
    return;
  }
  const at::Tensor& gate_up = ctx.scratch->Rows(gate_up_slot_, rows);
  gate_up_.Forward(ctx, x, gate_up);
  Finish(ctx, gate_up, out);
}

void GatedMlp::Forward(const ForwardContext& ctx, const NormedInput& in, const at::Tensor& out) const {
  if (!gate_up_.is_fp8()) {
    in.Make(ctx);
    return Forward(ctx, in.x, out);
  }
  const at::Tensor& gate_up = ctx.scratch->Rows(gate_up_slot_, in.x.size(0));
  gate_up_.Forward(ctx, in, gate_up);
  Finish(ctx, gate_up, out);
}

void GatedMlp::Finish(const ForwardContext& ctx, const at::Tensor& gate_up, const at::Tensor& out) const {
  const int64_t rows = gate_up.size(0);
  ops::SiluMulParams p;
  p.gate_up = gate_up.const_data_ptr();
  p.num_tokens = static_cast<int32_t>(rows);
  p.n = static_cast<int32_t>(gate_up.size(1) / 2);
  if (down_.is_fp8() && silu_mul_fp8_ != nullptr) {
    const ops::Fp8Rows x = down_.Fp8Input(ctx, rows);
    silu_mul_fp8_(p, x, ctx.op);
    down_.ForwardFp8(ctx, x, out);
    return;
  }
  const at::Tensor& act = ctx.scratch->Rows(act_slot_, rows);
  p.out = act.data_ptr();
  silu_mul_(p, ctx.op);
  down_.Forward(ctx, act, out);
}

}  // namespace fastllm::runtime
