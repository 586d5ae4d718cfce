#include "runtime/weights/renamed_source.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"

namespace fastllm::runtime {

RenamedSource::RenamedSource(std::shared_ptr<const TensorSource> source, std::string_view from, std::string_view to)
    : source_(std::move(source)), from_(from), tensors_(source_->tensors()) {
  const auto at = std::find_if(tensors_.begin(), tensors_.end(), [&](const TensorInfo& t) { return t.name == from; });
  FASTLLM_CHECK(at != tensors_.end() && source_->Find(to) == nullptr, "no tensor to rename to " + std::string(to));
  at->name = to;
  renamed_ = static_cast<size_t>(at - tensors_.begin());
}

const TensorInfo* RenamedSource::Find(std::string_view name) const {
  if (name == tensors_[renamed_].name) return &tensors_[renamed_];
  return name == from_ ? nullptr : source_->Find(name);
}

Result<const TensorInfo*> RenamedSource::Get(std::string_view name) const {
  return Find(name) != nullptr || name == from_ ? TensorSource::Get(name) : source_->Get(name);
}

void RenamedSource::Release(const TensorInfo& tensor, int64_t row_begin, int64_t row_end) const {
  source_->Release(tensor, row_begin, row_end);
}

}  // namespace fastllm::runtime
