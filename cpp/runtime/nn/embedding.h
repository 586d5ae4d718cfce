#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "ops/contract/embedding.h"
#include "ops/contract/half_linear.h"
#include "ops/contract/quant_linear.h"
#include "runtime/nn/builder.h"
#include "runtime/nn/context.h"

namespace fastllm::runtime {

// Rows of a [vocab, hidden] table by token id. Parameter: <path>.weight. Over several ranks each has the rows of a part
// of the vocabulary, and they add what they find.
class Embedding {
 public:
  Embedding(Builder& b, const std::string& path, int32_t vocab, int32_t hidden);

  // out: [num_tokens, hidden]
  void Forward(const ForwardContext& ctx, const at::Tensor& out) const;

  Param* weight() const { return weight_; }

 private:
  void ForwardHalf(const ForwardContext& ctx, const at::Tensor& out) const;

  Param* weight_;
  int32_t vocab_;
  std::shared_ptr<Communicator> ranks_;
  ops::EmbeddingFn fn_;
  ops::QuantEmbeddingFn quant_fn_;  // for a table that stays quantised
  ops::HalfEmbeddingFn half_fn_;    // or of 16-bit floats
};

}  // namespace fastllm::runtime
