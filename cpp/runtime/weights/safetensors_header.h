// The JSON of safetensors: the header of one file, and the index of a sharded checkpoint. safetensors.cc joins them
// with mapped files.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "fastllm/status.h"
#include "runtime/weights/tensor_source.h"

namespace fastllm::runtime {

// Longest header read, in bytes: the format's own limit.
inline constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;

// A tensor of the file whose dtype has no reader (I64, F8_E4M3, ...).
struct UnreadTensor {
  std::string name;
  std::string dtype;
};

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  // every check done, data points into the file
  std::vector<UnreadTensor> unread;
};

// data[0, size) is the whole file. Messages name the tensor or the byte, not the file. Errors: kDataLoss.
Result<SafetensorsHeader> ParseSafetensors(const uint8_t* data, size_t size);

// weight_map of an index file: (tensor name, shard file name), in file order. kDataLoss: not JSON, nested too deeply,
// no weight_map, a name that comes twice, or a shard name that is not a plain *.safetensors file name.
Result<std::vector<std::pair<std::string, std::string>>> ParseSafetensorsIndex(const uint8_t* data, size_t size);

}  // namespace fastllm::runtime
