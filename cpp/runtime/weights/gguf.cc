#include "runtime/weights/gguf.h"

#include <utility>

#include "runtime/weights/gguf_header.h"
#include "runtime/weights/mapped_file.h"
#include "runtime/weights/tensor_list.h"

namespace fastllm::runtime {

struct GgufFile::Impl {
  MappedFile file;
  GgufMetadata metadata;
  TensorList tensors;
};

GgufFile::GgufFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GgufFile::~GgufFile() = default;

Result<std::unique_ptr<GgufFile>> GgufFile::Open(const std::string& path) {
  auto impl = std::make_unique<Impl>();
  FASTLLM_ASSIGN_OR_RETURN(impl->file, MappedFile::Open(path));
  Result<GgufHeader> header = ParseGguf(impl->file.data(), impl->file.size());
  Status status = header.status();
  if (status.ok()) status = impl->tensors.Build(std::move(header->tensors));
  if (!status.ok()) return Status(status.code(), "GGUF file '" + path + "': " + status.message());
  impl->metadata = std::move(header->metadata);
  return std::unique_ptr<GgufFile>(new GgufFile(std::move(impl)));
}

const GgufMetadata& GgufFile::metadata() const { return impl_->metadata; }
const TensorInfo* GgufFile::Find(std::string_view name) const { return impl_->tensors.Find(name); }
const std::vector<TensorInfo>& GgufFile::tensors() const { return impl_->tensors.tensors(); }

void GgufFile::Release(const TensorInfo& tensor, int64_t row_begin, int64_t row_end) const {
  ReleaseRows(tensor, row_begin, row_end);
}

}  // namespace fastllm::runtime
