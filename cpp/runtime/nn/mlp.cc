#include "runtime/nn/mlp.h"

namespace fastllm::runtime {

GatedMlp::GatedMlp(Builder& b, const std::string& path, int32_t hidden, int32_t intermediate, bool bias)
    : gate_up_(b, path + ".gate_up", {intermediate, intermediate}, hidden, bias),
      down_(b, path + ".down", {hidden}, intermediate, bias),
      gate_up_slot_(b.Buffer("gate_up", 2 * int64_t{intermediate})),
      act_slot_(b.Buffer("mlp_act", intermediate)),
      silu_mul_(b.Op<ops::SiluMulFn>(ops::OpId::kSiluMul)) {}

void GatedMlp::Forward(const ForwardContext& ctx, const at::Tensor& x, const at::Tensor& out) const {
  const int32_t rows = static_cast<int32_t>(x.size(0));
  const at::Tensor& act = ctx.scratch->Rows(act_slot_, rows);
  if (gate_up_.CanGate(rows)) {
    gate_up_.ForwardGated(ctx, x, act);
    down_.Forward(ctx, act, out);
    return;
  }
  const at::Tensor& gate_up = ctx.scratch->Rows(gate_up_slot_, rows);
  gate_up_.Forward(ctx, x, gate_up);
  ops::SiluMulParams p;
  p.out = act.data_ptr();
  p.gate_up = gate_up.const_data_ptr();
  p.num_tokens = rows;
  p.n = static_cast<int32_t>(act.size(1));
  silu_mul_(p, ctx.op);
  down_.Forward(ctx, act, out);
}

void GatedMlp::ForwardFused(const ForwardContext& ctx, const FusedOps& fused, const FusedStream& stream,
                            const FusedNext& next) const {
  const at::Tensor& act = ctx.scratch->Rows(act_slot_, stream.x.size(0));
  gate_up_.NormForward(ctx, fused, stream, act, /*gated=*/true, down_.AsNext());
  down_.AddForward(ctx, fused, act, stream, next);
}

}  // namespace fastllm::runtime
