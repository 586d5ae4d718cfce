// Scratch: the activations of a step. Every layer shares the same buffers, because layers run one after another.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/tensor/placement.h"

namespace fastllm::runtime {

// A slot is a [rows, cols] buffer that grows to the largest row count seen and then stays: steps of a known size
// allocate nothing, and asking again for the same number of rows does not even cut a new view. Worker thread.
class Scratch {
 public:
  using Slot = int32_t;

  explicit Scratch(const Placement& placement = {}) : placement_(placement) {}

  // While building the model. Two blocks that give the same name and width share the slot. Elements are of the
  // placement's type, or of float32.
  Slot Reserve(const std::string& name, int64_t cols, bool float32 = false);

  // The slot's buffer cut to `rows`. Contents are whatever the last user left. Valid until the next call with another
  // row count for the same slot.
  const at::Tensor& Rows(Slot slot, int64_t rows);

  // Bytes that all slots hold.
  int64_t bytes() const;

 private:
  struct Buffer {
    std::string name;
    int64_t cols = 0;
    bool float32 = false;
    at::Tensor storage;  // [capacity, cols]
    at::Tensor view;     // [rows of the last call, cols]
  };
  Placement placement_;
  std::vector<Buffer> buffers_;
};

}  // namespace fastllm::runtime
