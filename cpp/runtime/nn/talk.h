// What blocks say to other ranks while a forward pass runs.
#pragma once

#include <ATen/core/Tensor.h>

#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "fastllm/status.h"
#include "runtime/comm/communicator.h"

namespace fastllm::runtime {

// A Status on its way out of a forward pass; runners turn it back.
class StatusError : public std::exception {
 public:
  explicit StatusError(Status status) : status_(std::move(status)), text_(status_.ToString()) {}
  const char* what() const noexcept override { return text_.c_str(); }
  const Status& status() const { return status_; }

 private:
  Status status_;
  std::string text_;
};

inline void ThrowIfError(const Status& status) {
  if (!status.ok()) throw StatusError(status);
}

// The type of a contiguous tensor of activations, as a message.
inline CommType CommTypeOf(const at::Tensor& t) {
  switch (t.scalar_type()) {
    case at::kHalf: return CommType::kF16;
    case at::kBFloat16: return CommType::kBF16;
    default: return CommType::kF32;
  }
}

// t becomes the sum over the ranks; nothing to do without a communicator.
inline void SumOverRanks(const std::shared_ptr<Communicator>& ranks, const ops::OpContext& op, const at::Tensor& t) {
  if (ranks != nullptr) ThrowIfError(ranks->AllReduceSum(op, t.mutable_data_ptr(), t.numel(), CommTypeOf(t)));
}

}  // namespace fastllm::runtime
