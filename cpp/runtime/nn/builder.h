// Builder: what a block needs while it is built. It declares the block's parameters and scratch, and resolves its ops
// once, so that the forward pass holds plain function pointers.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "fastllm/status.h"
#include "ops/table/op_table.h"
#include "runtime/comm/ranks.h"
#include "runtime/nn/param.h"
#include "runtime/quant/linear_method.h"
#include "runtime/tensor/placement.h"
#include "runtime/tensor/scratch.h"

namespace fastllm::runtime {

class Builder {
 public:
  // max_positions: positions that a sequence can take (rope tables are made for these). `layers`: what is built of the
  // model. With `ranks` blocks hold this rank's share of their parameters and talk to the other ranks.
  Builder(const ops::OpTable& table, const Placement& placement, int32_t max_positions, const LayerSpan& layers,
          ParamSet* params, Scratch* scratch, Ranks ranks = {}, LinearMethod linear = {})
      : table_(table),
        placement_(placement),
        max_positions_(max_positions),
        layers_(layers),
        params_(params),
        scratch_(scratch),
        ranks_(std::move(ranks)),
        linear_(std::move(linear)) {}

  Param* Matrix(std::string name, std::vector<Slice> parts, Slice cols) {
    return params_->Declare(std::move(name), std::move(parts), cols, ParamInit::kMatrix);
  }
  // The matrix of a linear layer, kept as the model's LinearMethod says.
  Param* LinearMatrix(const std::string& name, std::vector<Slice> parts, Slice cols) {
    Param* param = Matrix(name, std::move(parts), cols);
    param->is_fp8 = linear_.KindOf(name) == LinearKind::kFp8;
    return param;
  }
  Param* Bias(std::string name, std::vector<Slice> parts) {
    return params_->Declare(std::move(name), std::move(parts), 0, ParamInit::kBias);
  }
  Param* Norm(std::string name, int64_t size) { return params_->Declare(std::move(name), {size}, 0, ParamInit::kNorm); }

  Scratch::Slot Buffer(const std::string& name, int64_t cols) { return scratch_->Reserve(name, cols); }
  // Of float32 whatever the type of the model: logits, sums.
  Scratch::Slot Float32Buffer(const std::string& name, int64_t cols) {
    return scratch_->Reserve(name, cols, /*float32=*/true);
  }

  // A float32 table that the model computes once, where the model is.
  at::Tensor Constant(const std::vector<float>& values) const;

  // Null after a refusal; status() then says what was required and what there is.
  template <typename Fn>
  Fn Op(ops::OpId op, int32_t head_dim = 0, uint32_t features = ops::kFeatureNone) {
    const auto backend = op == ops::OpId::kPagedAttention ? placement_.attention_backend : ops::Backend::kAny;
    auto fn = table_.Resolve<Fn>({op, placement_.device, placement_.dtype, head_dim, features, backend});
    if (fn.ok()) return *fn;
    if (status_.ok()) status_ = fn.status();
    return nullptr;
  }

  // As Op(), for one that a block can do without: null where there is none, and no refusal.
  template <typename Fn>
  Fn OptionalOp(ops::OpId op, uint32_t features = ops::kFeatureNone) const {
    auto fn = table_.Resolve<Fn>({op, placement_.device, placement_.dtype, /*head_dim=*/0, features});
    return fn.ok() ? *fn : nullptr;
  }

  // This rank's even share of `size` units of `unit` elements each. Refused where the ranks do not divide them; `what`
  // are the units, for the message. With `repeat` there may also be fewer units than ranks, if these are a multiple:
  // then each unit is held by several neighbours.
  Slice Share(int64_t size, int64_t unit, const char* what, bool repeat = false);
  // This rank's share of `size` elements, of which the last ranks may have fewer or none; every share but these has
  // PaddedShare(size) elements.
  Slice UnevenShare(int64_t size) const;
  int64_t PaddedShare(int64_t size) const { return (size + tp_size() - 1) / tp_size(); }

  int32_t tp_rank() const { return ranks_.topology.tp_rank(); }
  int32_t tp_size() const { return ranks_.topology.sizes.tensor; }
  const Ranks& ranks() const { return ranks_; }
  const LayerSpan& layers() const { return layers_; }

  // Whether blocks take the fused products (nn/fused.h). By default not on the CPU, where these are an oracle and slow.
  bool fuses() const { return fuses_; }
  void set_fuses(bool fuses) { fuses_ = fuses; }

  bool batch_invariant() const { return linear_.batch_invariant; }

  int32_t max_positions() const { return max_positions_; }
  const Status& status() const { return status_; }  // the first refusal

 private:
  const ops::OpTable& table_;
  Placement placement_;
  int32_t max_positions_;
  LayerSpan layers_;
  ParamSet* params_;
  Scratch* scratch_;
  Ranks ranks_;
  bool fuses_ = placement_.device != ops::Device::kCpu;
  LinearMethod linear_;
  Status status_;
};

}  // namespace fastllm::runtime
