#include "runtime/tensor/scratch.h"

#include <algorithm>

#include "core/base/check.h"
#include "runtime/tensor/tensors.h"

namespace fastllm::runtime {

Scratch::Slot Scratch::Reserve(const std::string& name, int64_t cols, bool float32) {
  FASTLLM_CHECK(cols > 0, "scratch slot " + name + " needs a width");
  for (size_t i = 0; i < buffers_.size(); ++i) {
    if (buffers_[i].name == name && buffers_[i].cols == cols && buffers_[i].float32 == float32)
      return static_cast<Slot>(i);
  }
  buffers_.push_back({name, cols, float32, {}, {}});
  return static_cast<Slot>(buffers_.size() - 1);
}

const at::Tensor& Scratch::Rows(Slot slot, int64_t rows) {
  Buffer& b = buffers_[slot];
  if (b.view.defined() && b.view.size(0) == rows) return b.view;
  if (!b.storage.defined() || b.storage.size(0) < rows) {
    const int64_t capacity = b.storage.defined() ? std::max(rows, 2 * b.storage.size(0)) : rows;
    b.view.reset();
    b.storage.reset();
    b.storage = Empty({capacity, b.cols}, placement_.Options(b.float32 ? ops::DType::kF32 : placement_.dtype));
  }
  b.view = RowsOf(b.storage, 0, rows);
  return b.view;
}

int64_t Scratch::bytes() const {
  int64_t bytes = 0;
  for (const Buffer& b : buffers_) {
    if (b.storage.defined()) bytes += b.storage.numel() * static_cast<int64_t>(b.storage.element_size());
  }
  return bytes;
}

}  // namespace fastllm::runtime
