// Model: what the runner sees of an architecture.
#pragma once

#include <ATen/core/Tensor.h>

#include "runtime/nn/context.h"

namespace fastllm::runtime {

class Model {
 public:
  virtual ~Model() = default;

  // Hidden states of the step's tokens, or of those of ctx.wanted, after the final norm: [rows, hidden]. Valid until
  // the next call. Only where the object holds all layers may some be wanted. Where the object holds only part of the
  // layers, and not the last: what has gone on to the next part.
  virtual const at::Tensor& Forward(const ForwardContext& ctx) = 0;

  // Logits of some hidden states: [rows, hidden] -> [rows, vocab]. Valid until the next call. Only with the last
  // layers.
  virtual const at::Tensor& Logits(const ForwardContext& ctx, const at::Tensor& hidden) = 0;

  // The greedy tokens of some hidden states, without all logits in one place: where CanPick() says that ranks which
  // share the vocabulary, or the product itself, do that for so many rows. tokens: [rows], where the model is.
  virtual bool CanPick(int64_t /*rows*/) const { return false; }
  virtual void Pick(const ForwardContext& /*ctx*/, const at::Tensor& /*hidden*/, int32_t* /*tokens*/) {}
};

}  // namespace fastllm::runtime
