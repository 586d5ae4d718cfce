// SafetensorsSource: the safetensors of a Hugging Face folder, mapped: model.safetensors, or the shards that
// model.safetensors.index.json names (and only those). Same guarantees on corrupt files as gguf.h.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/weights/tensor_source.h"

namespace fastllm::runtime {

class SafetensorsSource : public TensorSource {
 public:
  // `path` is a folder or one .safetensors file.
  static Result<std::unique_ptr<SafetensorsSource>> Open(const std::string& path);
  ~SafetensorsSource() override;

  const TensorInfo* Find(std::string_view name) const override;
  const std::vector<TensorInfo>& tensors() const override;

 private:
  struct Impl;
  explicit SafetensorsSource(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace fastllm::runtime
