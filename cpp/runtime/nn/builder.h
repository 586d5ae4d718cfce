// Builder: what a block needs while it is built. It declares the block's parameters and scratch, and resolves its ops
// once, so that the forward pass holds plain function pointers.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "fastllm/status.h"
#include "ops/table/op_table.h"
#include "runtime/nn/param.h"
#include "runtime/quant/linear_method.h"
#include "runtime/tensor/placement.h"
#include "runtime/tensor/scratch.h"

namespace fastllm::runtime {

class Builder {
 public:
  // max_positions: positions that a sequence can take (rope tables are made for these).
  Builder(const ops::OpTable& table, const Placement& placement, int32_t max_positions, ParamSet* params,
          Scratch* scratch, LinearMethod linear = {})
      : table_(table),
        placement_(placement),
        max_positions_(max_positions),
        params_(params),
        scratch_(scratch),
        linear_(std::move(linear)) {}

  Param* Matrix(std::string name, std::vector<int64_t> part_rows, int64_t cols) {
    return params_->Declare(std::move(name), std::move(part_rows), cols, ParamInit::kMatrix);
  }
  // The matrix of a linear layer, kept as the model's LinearMethod says.
  Param* LinearMatrix(const std::string& name, std::vector<int64_t> part_rows, int64_t cols) {
    Param* param = Matrix(name, std::move(part_rows), cols);
    param->is_fp8 = linear_.KindOf(name) == LinearKind::kFp8;
    return param;
  }
  Param* Bias(std::string name, std::vector<int64_t> part_rows) {
    return params_->Declare(std::move(name), std::move(part_rows), 0, ParamInit::kBias);
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
  Fn OptionalOp(ops::OpId op) const {
    auto fn = table_.Resolve<Fn>({op, placement_.device, placement_.dtype});
    return fn.ok() ? *fn : nullptr;
  }

  int32_t max_positions() const { return max_positions_; }
  const Status& status() const { return status_; }  // the first refusal

 private:
  const ops::OpTable& table_;
  Placement placement_;
  int32_t max_positions_;
  ParamSet* params_;
  Scratch* scratch_;
  LinearMethod linear_;
  Status status_;
};

}  // namespace fastllm::runtime
