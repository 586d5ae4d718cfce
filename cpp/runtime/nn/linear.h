#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ops/contract/dense_linear.h"
#include "ops/contract/fp8.h"
#include "ops/contract/half_linear.h"
#include "ops/contract/linear.h"
#include "ops/contract/quant_linear.h"
#include "runtime/nn/builder.h"
#include "runtime/nn/context.h"
#include "runtime/nn/fused.h"
#include "runtime/nn/rms_norm.h"

namespace fastllm::runtime {

// y = x W^T + b, x rounded to 8 bits where the weight stays quantised (ops/contract/quant_linear.h; without
// batch_invariant to bfloat16 where there are many rows and the backend is faster so) or is in 8-bit
// floats (ops/contract/fp8.h), to bfloat16 where it stays bfloat16 (ops/contract/half_linear.h). Parameters:
// <path>.weight [out, in] and, with bias, <path>.bias [out]. `out_parts` are the output sizes of the layers packed into
// this one; their results lie side by side in y.
//
// Over several ranks a layer is cut by its outputs, each rank having its own part of y from all of x (column parallel),
// or by its inputs: each rank has its own part of x, and y is the sum of what they make of it (row parallel).
class Linear {
 public:
  // out_parts and in are this rank's shares (Builder::Share()).
  Linear(Builder& b, const std::string& path, std::vector<Slice> out_parts, Slice in, bool bias);

  // A layer that shares its weight with another block (an output head tied to the embedding).
  Linear(Builder& b, Param* weight);

  // x: [rows, in], y: [rows, out], this rank's parts, both contiguous float32.
  void Forward(const ForwardContext& ctx, const at::Tensor& x, const at::Tensor& y) const;
  // Of in.norm's result, which in.x need not hold afterwards.
  void Forward(const ForwardContext& ctx, const NormedInput& in, const at::Tensor& y) const;

  // y += x W^T + b, rounded once. Only where CanAdd() says so.
  bool CanAdd(int64_t rows) const {
    const bool has =
        weight_->is_fp8 ? fp8_.adding != nullptr : adding_ != nullptr && !weight_->is_packed() && !weight_->is_half();
    return has && rows >= ops::kLeastAddRows && ranks_ == nullptr;
  }
  void ForwardAdd(const ForwardContext& ctx, const at::Tensor& x, const at::Tensor& y) const;

  // With 8-bit floats: where the input of `rows` rows goes when the op before makes it in that form, and the product of
  // what lies there.
  bool is_fp8() const { return weight_->is_fp8; }
  ops::Fp8Rows Fp8Input(const ForwardContext& ctx, int64_t rows) const;
  // adds: as ForwardAdd().
  void ForwardFp8(const ForwardContext& ctx, const ops::Fp8Rows& x, const at::Tensor& y, bool adds = false) const;

  // With 8-bit floats: y as ForwardGated() makes it, of in.norm's result. Only where CanGateFp8() says so.
  bool CanGateFp8(int64_t rows) const { return fp8_.gated != nullptr && ops::GatesFp8Rows(static_cast<int32_t>(rows)); }
  void ForwardFp8Gated(const ForwardContext& ctx, const NormedInput& in, const at::Tensor& y) const;

  // y = silu(x W1^T) * (x W2^T), where W1 and W2 are the two equal parts of this layer's weight: [rows, out / 2]. Only
  // where CanGate() says so.
  bool CanGate(int64_t rows) const {
    return gated_.fn != nullptr && bias_ == nullptr && ranks_ == nullptr && !weight_->is_packed() &&
           !weight_->is_half() && !weight_->is_fp8 &&
           (rows <= ops::kSkinnyRows || (gated_.many && ops::GatesRows(static_cast<int32_t>(rows))));
  }
  void ForwardGated(const ForwardContext& ctx, const at::Tensor& x, const at::Tensor& y) const;

  // Where the weight stays quantised: one for each part.
  const std::vector<ops::QuantWeight>& packed() const { return weight_->packed; }
  bool has_bias() const { return bias_ != nullptr; }
  // What this rank's product adds, or null.
  const void* bias() const { return adds_bias_ ? bias_->value.const_data_ptr() : nullptr; }
  // Makes y, this rank's product, that of all ranks; where the context defers that, begins it for a piece.
  void AddRanks(const ForwardContext& ctx, const at::Tensor& y) const;

  // Whether the weight is whole and of the type of x, as the fused products want it.
  bool CanFuse(const at::Tensor& x) const;
  const void* weight_data() const { return weight_->value.const_data_ptr(); }
  const void* bias_data() const { return bias_ == nullptr ? nullptr : bias_->value.const_data_ptr(); }

  ops::NextWeight AsNext() const;

  // y = norm(in.x) W^T + b; gated as in ForwardGated.
  void NormForward(const ForwardContext& ctx, const FusedOps& fused, const FusedStream& in, const at::Tensor& y,
                   bool gated, const ops::NextWeight& next) const;

  // out.residual += x W^T + b, and what the next norm needs in out.x and out.squares.
  void AddForward(const ForwardContext& ctx, const FusedOps& fused, const at::Tensor& x, const FusedStream& out,
                  const FusedNext& next) const;

  bool batch_invariant() const { return batch_invariant_; }
  int64_t out_features() const { return weight_->rows(); }

  // Where x is rounded to 8 bits, more finely, for outputs in which errors weigh more.
  void RoundFinely() { fine_input_ = true; }

 private:
  void ForwardPacked(const ForwardContext& ctx, const at::Tensor& x, const at::Tensor& y) const;
  void ForwardHalf(const ForwardContext& ctx, const at::Tensor& x, const at::Tensor& y) const;
  ops::LinearParams Params(const at::Tensor& x, const at::Tensor& y) const;
  ops::Fp8LinearParams Fp8Params(const ops::Fp8Rows& x, const at::Tensor& y) const;
  // Rounds x, or what the norm makes of its input, to where Fp8Input() says. The
  // latter only where in.norm.has_fp8().
  ops::Fp8Rows RoundToFp8(const ForwardContext& ctx, const at::Tensor& x) const;
  ops::Fp8Rows NormToFp8(const ForwardContext& ctx, const NormedInput& in, int64_t rows) const;

  Param* weight_;
  Param* bias_ = nullptr;
  bool batch_invariant_;
  bool fine_input_ = false;
  bool adds_bias_ = false;               // of ranks that add their results one has the bias
  std::shared_ptr<Communicator> ranks_;  // whose results are added; null: this one's is all
  ops::LinearFn linear_;
  ops::QuantLinearFn quant_linear_;  // for a weight that stays quantised
  ops::HalfLinearFn half_linear_;    // or of 16-bit floats
  ops::LinearFn adding_ = nullptr;   // linear that adds to y; null: the backend has none
  struct {
    ops::LinearFn fn = nullptr;  // null: the backend has none
    bool many = false;           // it takes more than kSkinnyRows rows
  } gated_;
  struct Fp8 {  // where the weight is in 8-bit floats
    ops::QuantizeFp8Fn quantize = nullptr;
    ops::Fp8LinearFn linear = nullptr;
    ops::Fp8LinearFn adding = nullptr;        // adds to y; null: the backend has none
    ops::Fp8LinearSiluMulFn gated = nullptr;  // null: the backend has none, or not for this layer
    Scratch::Slot rows = 0;
    Scratch::Slot scales = 0;
  } fp8_;
};

}  // namespace fastllm::runtime
