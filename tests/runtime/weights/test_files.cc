#include "runtime/weights/test_files.h"

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <stdexcept>

namespace fastllm::runtime::testing {
namespace fs = std::filesystem;

TempDir::TempDir() {
  std::string pattern = (fs::temp_directory_path() / "weights_XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp " + pattern);
  path_ = pattern;
}

TempDir::~TempDir() { fs::remove_all(path_); }

std::string TempDir::Write(const std::string& name, const std::string& bytes) const {
  const fs::path file = path_ / name;
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  out.close();
  if (!out) throw std::runtime_error("write " + file.string());
  return file.string();
}

std::string RawFloats(const std::vector<float>& values) {
  std::string bytes;
  for (float value : values) bytes += Raw(value);
  return bytes;
}

std::string GgufString(const std::string& text) { return Raw(static_cast<uint64_t>(text.size())) + text; }

std::string GgufPair(const std::string& key, uint32_t type, const std::string& value) {
  return GgufString(key) + Raw(type) + value;
}

std::string GgufArrayPair(const std::string& key, uint32_t element_type, uint64_t count, const std::string& elements) {
  return GgufPair(key, 9, Raw(element_type) + Raw(count) + elements);
}

namespace {

uint64_t Align(uint64_t value, uint64_t alignment) { return (value + alignment - 1) / alignment * alignment; }

}  // namespace

std::string GgufBuilder::Header() const {
  std::string bytes =
      magic + Raw(version) + Raw(tensor_count.value_or(tensors.size())) + Raw(pair_count.value_or(pairs.size()));
  for (const std::string& pair : pairs) bytes += pair;
  uint64_t next = 0;
  for (const GgufTensor& tensor : tensors) {
    bytes += GgufString(tensor.name) + Raw(static_cast<uint32_t>(tensor.dims.size()));
    for (uint64_t dim : tensor.dims) bytes += Raw(dim);
    bytes += Raw(tensor.type) + Raw(tensor.offset.value_or(next));
    next = Align(next + tensor.data.size(), alignment);
  }
  return bytes;
}

std::string GgufBuilder::Build() const {
  std::string bytes = Header();
  for (const GgufTensor& tensor : tensors) {
    bytes.resize(Align(bytes.size(), alignment), '\0');
    bytes += tensor.data;
  }
  return bytes;
}

GgufBuilder SmallGguf() {
  GgufBuilder builder;
  builder.pairs = {
      GgufPair("general.architecture", 8, GgufString("llama")),
      GgufPair("llama.block_count", 4, Raw(uint32_t{2})),
      GgufPair("llama.eps", 6, Raw(0.5f)),
      GgufArrayPair("tokens", 8, 2, GgufString("x") + GgufString("yz")),
      GgufArrayPair("types", 5, 2, Raw(int32_t{1}) + Raw(int32_t{-3})),
  };
  std::string q8;
  for (int row = 0; row < 2; ++row) {
    q8 += Raw(static_cast<uint16_t>(row == 0 ? 0x3C00 : 0xC000));  // halves 1 and -2
    for (int i = 0; i < 32; ++i) q8 += static_cast<char>(static_cast<int8_t>(i - 16));
  }
  builder.tensors = {
      {"a", {3, 2}, 0, RawFloats({0, 1, 2, 3, 4, 5}), {}},
      {"b", {32, 2}, 8, q8, {}},
      {"c", {4}, 1, Raw(uint16_t{0x3C00}) + Raw(uint16_t{0xC000}) + Raw(uint16_t{0x3800}) + Raw(uint16_t{0}), {}},
  };
  return builder;
}

std::string Safetensors(const std::string& json, const std::string& data) {
  return Raw(static_cast<uint64_t>(json.size())) + json + data;
}

std::string SmallSafetensors() {
  return Safetensors(R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                     R"("b":{"dtype":"BF16","shape":[2],"data_offsets":[24,28]},)"
                     R"("n":{"dtype":"I64","shape":[1],"data_offsets":[28,36]}}   )",
                     RawFloats({0, 1, 2, 3, 4, 5}) + Raw(uint16_t{0x3F80}) + Raw(uint16_t{0xC000}) + Raw(int64_t{7}));
}

std::vector<float> Values(const TensorInfo& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.numel()));
  DequantizeRows(tensor, 0, tensor.shape.empty() ? 1 : tensor.shape[0], values.data());
  return values;
}

}  // namespace fastllm::runtime::testing
