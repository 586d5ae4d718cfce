#include "runtime/weights/tensor_list.h"

#include "runtime/weights/mapped_file.h"
#include "runtime/weights/quoted.h"

namespace fastllm::runtime {

Status TensorList::Build(std::vector<TensorInfo> tensors) {
  tensors_ = std::move(tensors);
  index_.clear();
  index_.reserve(tensors_.size());
  for (const TensorInfo& tensor : tensors_) {
    if (!index_.emplace(tensor.name, &tensor).second) {
      return Status::DataLoss("tensor name " + Quoted(tensor.name) + " comes twice");
    }
  }
  return Status::Ok();
}

std::optional<int64_t> CheckedBytes(const std::vector<int64_t>& shape, int64_t block_elements, int64_t block_bytes) {
  int64_t numel = 1;
  for (int64_t dim : shape) {
    if (__builtin_mul_overflow(numel, dim, &numel)) return std::nullopt;
  }
  int64_t bytes = 0;
  if (__builtin_mul_overflow(numel / block_elements, block_bytes, &bytes)) return std::nullopt;
  return bytes;
}

void ReleaseRows(const TensorInfo& tensor, int64_t row_begin, int64_t row_end) {
  const int64_t rows = tensor.shape.empty() ? 1 : tensor.shape[0];
  if (rows == 0) return;
  const auto row_bytes = static_cast<int64_t>(tensor.nbytes) / rows;
  MappedFile::Release(tensor.data + row_begin * row_bytes, static_cast<size_t>((row_end - row_begin) * row_bytes));
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size() && i < 16; ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + (shape.size() > 16 ? ", ...]" : "]");
}

}  // namespace fastllm::runtime
