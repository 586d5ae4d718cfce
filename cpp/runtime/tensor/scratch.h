// Scratch: the activations of a step. Every layer shares the same buffers, because layers run one after another.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace fastllm::runtime {

// A slot is a [rows, cols] float32 buffer that grows to the largest row count seen and then stays: steps of a known
// size allocate nothing, and asking again for the same number of rows does not even cut a new view. Worker thread.
class Scratch {
 public:
  using Slot = int32_t;

  // While building the model. Two blocks that give the same name and width share the slot.
  Slot Reserve(const std::string& name, int64_t cols);

  // The slot's buffer cut to `rows`. Contents are whatever the last user left. Valid until the next call with another
  // row count for the same slot.
  const at::Tensor& Rows(Slot slot, int64_t rows);

 private:
  struct Buffer {
    std::string name;
    int64_t cols = 0;
    at::Tensor storage;  // [capacity, cols]
    at::Tensor view;     // [rows of the last call, cols]
  };
  std::vector<Buffer> buffers_;
};

}  // namespace fastllm::runtime
