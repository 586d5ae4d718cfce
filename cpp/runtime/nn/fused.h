// The fused products of a decoder layer (ops/contract/fused_linear.h) as blocks use them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "ops/contract/fused_linear.h"
#include "runtime/nn/builder.h"
#include "runtime/tensor/tensors.h"

namespace fastllm::runtime {

// Resolved once; null where the backend has none or the builder does not fuse. Several ranks that share a model have
// norm_qkv alone: what comes after the other products is the sum over the ranks, and norm_linear is slower than linear.
struct FusedOps {
  FusedOps(const Builder& b, int32_t head_dim);

  ops::NormLinearFn norm_linear = nullptr;
  ops::LinearAddFn linear_add = nullptr;
  ops::NormQkvFn norm_qkv = nullptr;  // may be missing alone

  bool available() const { return norm_linear != nullptr && linear_add != nullptr; }
};

// What comes after a product that adds to the residual: the gain of the next norm, null when none does, and the weight
// of the next product.
struct FusedNext {
  const void* gain = nullptr;
  ops::NextWeight weight;
};

// The residual of a step's tokens between fused products: x is what the next product reads, the residual under the gain
// of the norm that comes next, or normalised already (`normed`). All [rows, hidden] but squares: float32,
// with room for [rows, SquareParts(hidden)].
struct FusedStream {
  const at::Tensor& residual;
  const at::Tensor& x;
  const at::Tensor& squares;
  float eps = 0.0f;
  bool normed = false;

  ops::NormedRows Rows() const { return {x.const_data_ptr(), normed ? nullptr : DataOf<const float>(squares), eps}; }
};

}  // namespace fastllm::runtime
