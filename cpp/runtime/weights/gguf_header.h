// The header of a GGUF file, parsed and checked on its own; gguf.cc joins it with the mapped bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "fastllm/status.h"
#include "runtime/weights/gguf.h"

namespace fastllm::runtime {

struct GgufHeader {
  GgufMetadata metadata;
  std::vector<TensorInfo> tensors;  // every check done, data points into the file
};

// data[0, size) is the whole file. Messages name the key, tensor or byte, not the file. Errors as GgufFile::Open.
Result<GgufHeader> ParseGguf(const uint8_t* data, size_t size);

}  // namespace fastllm::runtime
