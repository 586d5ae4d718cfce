#include "runtime/nn/fused.h"

namespace fastllm::runtime {

FusedOps::FusedOps(const Builder& b, int32_t head_dim) {
  if (!b.fuses() || !b.layers().begins() || !b.layers().ends()) return;
  if (head_dim % ops::kSquareColumns == 0) norm_qkv = b.OptionalOp<ops::NormQkvFn>(ops::OpId::kNormQkv);
  if (b.tp_size() > 1) return;
  norm_linear = b.OptionalOp<ops::NormLinearFn>(ops::OpId::kNormLinear);
  linear_add = b.OptionalOp<ops::LinearAddFn>(ops::OpId::kLinearAdd);
}

}  // namespace fastllm::runtime
