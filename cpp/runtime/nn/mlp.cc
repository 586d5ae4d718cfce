#include "runtime/nn/mlp.h"

#include <algorithm>

#include "runtime/nn/pieces.h"
#include "runtime/tensor/tensors.h"

namespace fastllm::runtime {

GatedMlp::GatedMlp(Builder& b, const std::string& path, int32_t hidden, int32_t intermediate, bool bias)
    : GatedMlp(b, path, hidden, b.Share(intermediate, 1, "intermediate values"), bias) {}

GatedMlp::GatedMlp(Builder& b, const std::string& path, int32_t hidden, Slice intermediate, bool bias)
    : gate_up_(b, path + ".gate_up", {intermediate, intermediate}, hidden, bias),
      down_(b, path + ".down", {hidden}, intermediate, bias),
      gate_up_slot_(b.Buffer("gate_up", 2 * intermediate.size)),
      act_slot_(b.Buffer("mlp_act", intermediate.size)),
      silu_mul_(b.Op<ops::SiluMulFn>(ops::OpId::kSiluMul)),
      silu_mul_fp8_(b.OptionalOp<ops::SiluMulFp8Fn>(ops::OpId::kSiluMulFp8)),
      wide_(b.batch_invariant() ? nullptr : b.OptionalOp<ops::QuantMlpFn>(ops::OpId::kQuantMlp)),
      exact_(b.OptionalOp<ops::QuantMlpFn>(ops::OpId::kQuantMlpExact)) {}

void GatedMlp::Forward(const ForwardContext& ctx, const at::Tensor& x, const at::Tensor& out) const {
  ForwardNormed(ctx, x, out, /*adds=*/false);
}

void GatedMlp::ForwardNormed(const ForwardContext& ctx, const at::Tensor& x, const at::Tensor& out, bool adds) const {
  const int32_t rows = static_cast<int32_t>(x.size(0));
  if (gate_up_.CanGate(rows)) {
    const at::Tensor& act = ctx.scratch->Rows(act_slot_, rows);
    gate_up_.ForwardGated(ctx, x, act);
    Down(ctx, act, out, adds);
    return;
  }
  if (const ops::QuantMlpFn whole = WholeOp(rows); whole != nullptr) return ForwardWhole(ctx, whole, x, out);
  const at::Tensor& gate_up = ctx.scratch->Rows(gate_up_slot_, rows);
  gate_up_.Forward(ctx, x, gate_up);
  Finish(ctx, gate_up, out, adds);
}

void GatedMlp::Forward(const ForwardContext& ctx, const NormedInput& in, const at::Tensor& out, bool adds) const {
  if (InPieces(ctx, out.size(0), [&](const ForwardContext& piece, int64_t first, int64_t rows) {
        Forward(piece, PieceOf(in, first, rows).input(), RowsOf(out, first, rows), adds);
      })) {
    return;
  }
  if (!gate_up_.is_fp8()) {
    in.Make(ctx);
    return ForwardNormed(ctx, in.x, out, adds);
  }
  const int64_t rows = in.x.size(0);
  if (gate_up_.CanGateFp8(rows)) {
    const at::Tensor& act = ctx.scratch->Rows(act_slot_, rows);
    gate_up_.ForwardFp8Gated(ctx, in, act);
    return Down(ctx, act, out, adds);
  }
  // The largest step makes room for the smaller ones that take the way above.
  if (gate_up_.CanGateFp8(ops::kMostGatedFp8Rows)) {
    ctx.scratch->Rows(act_slot_, std::min<int64_t>(rows, ops::kMostGatedFp8Rows));
  }
  const at::Tensor& gate_up = ctx.scratch->Rows(gate_up_slot_, rows);
  gate_up_.Forward(ctx, in, gate_up);
  Finish(ctx, gate_up, out, adds);
}

ops::QuantMlpFn GatedMlp::WholeOp(int32_t rows) const {
  const ops::QuantMlpFn op = wide_ != nullptr && rows >= ops::kWideRows ? wide_ : exact_;
  if (op == nullptr || gate_up_.has_bias()) return nullptr;
  const auto &first = gate_up_.packed(), &second = down_.packed();
  const bool fits = first.size() == 2 && second.size() == 1 && first[0].format == first[1].format &&
                    first[0].n % ops::kQuantBlock == 0;
  return fits ? op : nullptr;
}

void GatedMlp::ForwardWhole(const ForwardContext& ctx, ops::QuantMlpFn op, const at::Tensor& x,
                            const at::Tensor& out) const {
  ops::QuantMlpParams p;
  p.out = DataOf<float>(out);
  p.x = DataOf<const float>(x);
  p.gate = &gate_up_.packed()[0];
  p.up = &gate_up_.packed()[1];
  p.down = down_.packed().data();
  p.bias = static_cast<const float*>(down_.bias());
  p.num_rows = static_cast<int32_t>(x.size(0));
  op(p, ctx.op);
  down_.AddRanks(ctx, out);
}

void GatedMlp::Finish(const ForwardContext& ctx, const at::Tensor& gate_up, const at::Tensor& out, bool adds) const {
  const int64_t rows = gate_up.size(0);
  ops::SiluMulParams p;
  p.gate_up = gate_up.const_data_ptr();
  p.num_tokens = static_cast<int32_t>(rows);
  p.n = static_cast<int32_t>(gate_up.size(1) / 2);
  if (down_.is_fp8() && silu_mul_fp8_ != nullptr) {
    const ops::Fp8Rows x = down_.Fp8Input(ctx, rows);
    silu_mul_fp8_(p, x, ctx.op);
    down_.ForwardFp8(ctx, x, out, adds);
    return;
  }
  const at::Tensor& act = ctx.scratch->Rows(act_slot_, rows);
  p.out = act.data_ptr();
  silu_mul_(p, ctx.op);
  Down(ctx, act, out, adds);
}

void GatedMlp::ForwardFused(const ForwardContext& ctx, const FusedOps& fused, const FusedStream& stream,
                            const FusedNext& next) const {
  const at::Tensor& act = ctx.scratch->Rows(act_slot_, stream.x.size(0));
  gate_up_.NormForward(ctx, fused, stream, act, /*gated=*/true, down_.AsNext());
  down_.AddForward(ctx, fused, act, stream, next);
}

}  // namespace fastllm::runtime
