// Writers of tiny GGUF and safetensors files, right by default and wrong on demand.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/weights/tensor_source.h"

namespace fastllm::runtime::testing {

// A fresh folder, removed with everything in it.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  // Writes the file and returns its path.
  std::string Write(const std::string& name, const std::string& bytes) const;
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

// The bytes of a number, in memory order.
template <typename T>
std::string Raw(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}
std::string RawFloats(const std::vector<float>& values);

// GGUF pieces: a string with its length; metadata pairs.
std::string GgufString(const std::string& text);
std::string GgufPair(const std::string& key, uint32_t type, const std::string& value);
std::string GgufArrayPair(const std::string& key, uint32_t element_type, uint64_t count, const std::string& elements);

struct GgufTensor {
  std::string name;
  std::vector<uint64_t> dims;  // GGUF's order: innermost first
  uint32_t type = 0;
  std::string data;
  std::optional<uint64_t> offset;  // instead of the next aligned one
};

struct GgufBuilder {
  std::string magic = "GGUF";
  uint32_t version = 3;
  std::vector<std::string> pairs;
  std::vector<GgufTensor> tensors;
  uint64_t alignment = 32;  // that the layout uses; the key is not written
  std::optional<uint64_t> tensor_count;
  std::optional<uint64_t> pair_count;

  std::string Header() const;  // up to and with the tensor table
  std::string Build() const;
};

// A builder with metadata of several types, and tensors "a" F32 [2, 3], "b" Q8_0 [2, 32], "c" F16 [4].
GgufBuilder SmallGguf();

// header length, header, data.
std::string Safetensors(const std::string& json, const std::string& data);
// Tensors "a" F32 [2, 3] = 0..5, "b" BF16 [2] = 1, -2 and "n" I64 [1].
std::string SmallSafetensors();

// All values of a tensor, by DequantizeRows.
std::vector<float> Values(const TensorInfo& tensor);

}  // namespace fastllm::runtime::testing
