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
  // `path` is a folder or one .safetensors file. Tensors of other dtypes than F32, F16, BF16 (integer buffers that old
  // checkpoints carry) do not fail Open: they are not in tensors(), and Get says why. With an index, exactly the
  // tensors it lists are taken, each from the shard it names. Errors: kNotFound (no such file, folder without weights,
  // missing shard, named), kDataLoss (truncated, corrupt, index and shards disagree).
  static Result<std::unique_ptr<SafetensorsSource>> Open(const std::string& path);
  ~SafetensorsSource() override;

  const TensorInfo* Find(std::string_view name) const override;
  const std::vector<TensorInfo>& tensors() const override;
  void Release(const TensorInfo& tensor, int64_t row_begin, int64_t row_end) const override;
  Result<const TensorInfo*> Get(std::string_view name) const override;

 private:
  struct Impl;
  explicit SafetensorsSource(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace fastllm::runtime
