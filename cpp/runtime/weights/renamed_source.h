// RenamedSource: a checkpoint in which one tensor goes by another name.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/weights/tensor_source.h"

namespace fastllm::runtime {

class RenamedSource : public TensorSource {
 public:
  // `source` has a tensor `from` and none called `to`.
  RenamedSource(std::shared_ptr<const TensorSource> source, std::string_view from, std::string_view to);

  const TensorInfo* Find(std::string_view name) const override;
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  Result<const TensorInfo*> Get(std::string_view name) const override;
  void Release(const TensorInfo& tensor, int64_t row_begin, int64_t row_end) const override;

 private:
  std::shared_ptr<const TensorSource> source_;
  std::string from_;
  std::vector<TensorInfo> tensors_;
  size_t renamed_ = 0;  // its place in tensors_
};

}  // namespace fastllm::runtime
