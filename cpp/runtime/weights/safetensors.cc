#include "runtime/weights/safetensors.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "runtime/weights/mapped_file.h"
#include "runtime/weights/quoted.h"
#include "runtime/weights/safetensors_header.h"
#include "runtime/weights/tensor_list.h"

namespace fastllm::runtime {
namespace fs = std::filesystem;
namespace {

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

bool Exists(const fs::path& path) {
  std::error_code ignored;  // a path that cannot be examined counts as absent
  return fs::exists(path, ignored);
}

Status WithFile(const std::string& path, const Status& status) {
  return Status(status.code(), "'" + path + "': " + status.message());
}

}  // namespace

struct SafetensorsSource::Impl {
  std::vector<MappedFile> files;
  TensorList tensors;
  std::unordered_map<std::string, std::string> unread;  // tensor name to its dtype

  Result<SafetensorsHeader> Map(const std::string& path);
  Status OpenFile(const std::string& path);
  Status OpenIndex(const fs::path& folder);
};

Result<SafetensorsHeader> SafetensorsSource::Impl::Map(const std::string& path) {
  FASTLLM_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  Result<SafetensorsHeader> header = ParseSafetensors(file.data(), file.size());
  if (!header.ok()) return WithFile(path, header.status());
  files.push_back(std::move(file));
  return header;
}

Status SafetensorsSource::Impl::OpenFile(const std::string& path) {
  FASTLLM_ASSIGN_OR_RETURN(SafetensorsHeader header, Map(path));
  for (UnreadTensor& tensor : header.unread) unread.emplace(std::move(tensor.name), std::move(tensor.dtype));
  return tensors.Build(std::move(header.tensors));
}

// Takes from each shard the tensors that the index places there; a shard's other tensors are left alone.
Status SafetensorsSource::Impl::OpenIndex(const fs::path& folder) {
  const std::string index_path = (folder / kIndex).string();
  FASTLLM_ASSIGN_OR_RETURN(const MappedFile index, MappedFile::Open(index_path));
  auto parsed = ParseSafetensorsIndex(index.data(), index.size());
  if (!parsed.ok()) return WithFile(index_path, parsed.status());
  std::unordered_map<std::string, std::string> shard_of(parsed->begin(), parsed->end());
  std::vector<std::string> shards;  // in the order the index first names them
  for (const auto& [name, shard] : *parsed) {
    if (std::find(shards.begin(), shards.end(), shard) == shards.end()) shards.push_back(shard);
  }
  std::vector<TensorInfo> found;
  for (const std::string& shard : shards) {
    const fs::path path = folder / shard;
    if (!Exists(path)) {
      return Status::NotFound("shard " + Quoted(shard) + ", named by '" + index_path + "', does not exist");
    }
    FASTLLM_ASSIGN_OR_RETURN(SafetensorsHeader header, Map(path.string()));
    const auto claim = [&](const std::string& name) {
      const auto it = shard_of.find(name);
      if (it == shard_of.end() || it->second != shard) return false;
      shard_of.erase(it);
      return true;
    };
    for (TensorInfo& tensor : header.tensors) {
      if (claim(tensor.name)) found.push_back(std::move(tensor));
    }
    for (UnreadTensor& tensor : header.unread) {
      if (claim(tensor.name)) unread.emplace(std::move(tensor.name), std::move(tensor.dtype));
    }
  }
  for (const auto& [name, shard] : *parsed) {
    if (!shard_of.contains(name)) continue;
    return Status::DataLoss("tensor " + Quoted(name) + " is not in shard " + Quoted(shard) + ", where '" + index_path +
                            "' places it");
  }
  return tensors.Build(std::move(found));
}

SafetensorsSource::SafetensorsSource(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SafetensorsSource::~SafetensorsSource() = default;

Result<std::unique_ptr<SafetensorsSource>> SafetensorsSource::Open(const std::string& path) {
  auto impl = std::make_unique<Impl>();
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) {
    FASTLLM_RETURN_IF_ERROR(impl->OpenFile(path));
  } else if (const fs::path single = fs::path(path) / kSingle; Exists(single)) {
    FASTLLM_RETURN_IF_ERROR(impl->OpenFile(single.string()));
  } else if (Exists(fs::path(path) / kIndex)) {
    FASTLLM_RETURN_IF_ERROR(impl->OpenIndex(path));
  } else {
    return Status::NotFound("folder '" + path + "' has neither " + kSingle + " nor " + kIndex);
  }
  return std::unique_ptr<SafetensorsSource>(new SafetensorsSource(std::move(impl)));
}

const TensorInfo* SafetensorsSource::Find(std::string_view name) const { return impl_->tensors.Find(name); }
const std::vector<TensorInfo>& SafetensorsSource::tensors() const { return impl_->tensors.tensors(); }

Result<const TensorInfo*> SafetensorsSource::Get(std::string_view name) const {
  const auto it = impl_->unread.find(std::string(name));
  if (it == impl_->unread.end()) return TensorSource::Get(name);
  return Status::Unimplemented("tensor " + Quoted(it->first) + " has dtype " + Quoted(it->second) +
                               "; the dtypes read are F32, F16, BF16, F8_E4M3");
}

void SafetensorsSource::Release(const TensorInfo& tensor, int64_t row_begin, int64_t row_end) const {
  ReleaseRows(tensor, row_begin, row_end);
}

}  // namespace fastllm::runtime
