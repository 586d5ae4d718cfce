#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/nn/builder.h"
#include "runtime/nn/context.h"
#include "runtime/nn/linear.h"

namespace fastllm::runtime {

// Logits over the vocabulary, float32. Each rank has the rows of its part of the vocabulary; every rank gets all
// logits.
class VocabHead {
 public:
  // With a weight of its own, <path>.weight.
  VocabHead(Builder& b, const std::string& path, int64_t vocab, int64_t hidden);
  // With that of the embedding.
  VocabHead(Builder& b, Param* embedding, int64_t vocab);

  // [rows, hidden] -> [rows, vocab]. Valid until the next call.
  const at::Tensor& Forward(const ForwardContext& ctx, const at::Tensor& hidden) const;

  // The greedy tokens of [rows, hidden] where all logits need not be in one place: where CanPick() says that the ranks
  // do that for so many rows, or that a weight that stays quantised is multiplied so. tokens: [rows], on the device.
  bool CanPick(int64_t rows) const;
  void Pick(const ForwardContext& ctx, const at::Tensor& hidden, int32_t* tokens) const;

  // The weight, for the op before to fetch.
  ops::NextWeight AsNext() const { return linear_.AsNext(); }

 private:
  int64_t vocab_;
  int64_t share_;  // columns of a rank, the last ones' padding included
  std::shared_ptr<Communicator> ranks_;
  Linear linear_;
  ops::QuantPickFn pick_;  // null: the backend has none
  Scratch::Slot logits_;
  Scratch::Slot own_ = 0;    // [rows, this rank's part]
  Scratch::Slot parts_ = 0;  // [ranks * rows, share]
};

}  // namespace fastllm::runtime
