// Parts both readers share: the list of tensors with its name index, and overflow-checked sizes.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/weights/tensor_source.h"

namespace fastllm::runtime {

// Tensors in file order, found by name. Built once, then read only. Not movable after Build: the index points into it.
class TensorList {
 public:
  TensorList() = default;
  TensorList(const TensorList&) = delete;
  TensorList& operator=(const TensorList&) = delete;

  // Takes the tensors. kDataLoss names a name that comes twice.
  Status Build(std::vector<TensorInfo> tensors);

  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  const TensorInfo* Find(std::string_view name) const {
    const auto it = index_.find(name);
    return it == index_.end() ? nullptr : it->second;
  }

 private:
  std::vector<TensorInfo> tensors_;
  std::unordered_map<std::string_view, const TensorInfo*> index_;
};

// Bytes of a tensor of this shape in blocks of block_elements; nullopt when its elements or bytes pass int64_t.
// Dimensions are not negative, and their product is whole blocks.
std::optional<int64_t> CheckedBytes(const std::vector<int64_t>& shape, int64_t block_elements, int64_t block_bytes);

// MappedFile::Release of rows of a tensor whose data lie in a mapped file.
void ReleaseRows(const TensorInfo& tensor, int64_t row_begin, int64_t row_end);

// "[2, 3]", for messages; the first 16 dimensions.
std::string ShapeText(const std::vector<int64_t>& shape);

}  // namespace fastllm::runtime
