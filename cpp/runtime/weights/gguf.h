// GgufFile: a mapped GGUF file (v2, v3): metadata and tensors. Every count, offset, length and type is checked
// against the file before use, so a truncated or corrupt file gives kDataLoss and never a read out of bounds.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "runtime/weights/tensor_source.h"

namespace fastllm::runtime {

// Integers of all widths come as int64_t (uint64 values past its range are refused), floats as double.
using GgufValue = std::variant<bool, int64_t, double, std::string, std::vector<int64_t>, std::vector<double>,
                               std::vector<std::string>>;
using GgufMetadata = std::unordered_map<std::string, GgufValue>;

class GgufFile : public TensorSource {
 public:
  // Errors: kNotFound (no such file), kDataLoss (truncated, corrupt), kUnimplemented (version or tensor type).
  static Result<std::unique_ptr<GgufFile>> Open(const std::string& path);
  ~GgufFile() override;

  const GgufMetadata& metadata() const;
  const TensorInfo* Find(std::string_view name) const override;
  const std::vector<TensorInfo>& tensors() const override;
  void Release(const TensorInfo& tensor, int64_t row_begin, int64_t row_end) const override;

 private:
  struct Impl;
  explicit GgufFile(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace fastllm::runtime
