// Model: what the runner sees of an architecture.
#pragma once

#include <ATen/core/Tensor.h>

#include "runtime/nn/context.h"

namespace fastllm::runtime {

class Model {
 public:
  virtual ~Model() = default;

  // Hidden states of the step's tokens, after the final norm: [num_tokens, hidden]. Valid until the next call.
  virtual const at::Tensor& Forward(const ForwardContext& ctx) = 0;

  // Logits of some hidden states: [rows, hidden] -> [rows, vocab]. Valid until the next call.
  virtual const at::Tensor& Logits(const ForwardContext& ctx, const at::Tensor& hidden) = 0;
};

}  // namespace fastllm::runtime
