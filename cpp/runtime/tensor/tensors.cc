#include "runtime/tensor/tensors.h"

#ifdef FASTLLM_CUDA
#include <ATen/ops/empty.h>
#endif
#include <c10/core/CPUAllocator.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>

#include <utility>

namespace fastllm::runtime {
namespace {

at::Tensor Over(c10::Storage storage, at::IntArrayRef sizes, const at::TensorOptions& options) {
  auto impl = c10::make_intrusive<c10::TensorImpl>(std::move(storage), options.computeDispatchKey(), options.dtype());
  impl->set_sizes_contiguous(sizes);
  return at::Tensor(std::move(impl));
}

size_t BytesOf(at::IntArrayRef sizes, const at::TensorOptions& options) {
  return static_cast<size_t>(c10::multiply_integers(sizes)) * options.dtype().itemsize();
}

}  // namespace

at::Tensor Empty(at::IntArrayRef sizes, const at::TensorOptions& options) {
#ifdef FASTLLM_CUDA
  if (!options.device().is_cpu()) return at::empty(sizes, options);
#endif
  FASTLLM_CHECK(options.device().is_cpu(), "this build has tensors in host memory only");
  c10::Allocator* const allocator = c10::GetCPUAllocator();
  const size_t bytes = BytesOf(sizes, options);
  return Over(c10::Storage(c10::Storage::use_byte_size_t(), bytes, allocator->allocate(bytes), allocator), sizes,
              options);
}

at::Tensor Wrap(void* data, at::IntArrayRef sizes, const at::TensorOptions& options, std::shared_ptr<void> owner) {
  at::DataPtr pointer(data, options.device());
  if (owner != nullptr) {
    using Owner = std::shared_ptr<void>;
    pointer = at::DataPtr(
        data, new Owner(std::move(owner)), [](void* kept) { delete static_cast<Owner*>(kept); }, options.device());
  }
  return Over(c10::Storage(c10::Storage::use_byte_size_t(), BytesOf(sizes, options), std::move(pointer)), sizes,
              options);
}

at::Tensor RowsOf(const at::Tensor& t, int64_t first, int64_t count) {
  FASTLLM_CHECK(t.dim() == 2 && first >= 0 && count >= 0 && first + count <= t.size(0), "rows outside of a tensor");
  auto impl = c10::make_intrusive<c10::TensorImpl>(c10::Storage(t.storage()), t.key_set(), t.dtype());
  impl->set_storage_offset(t.storage_offset() + first * t.stride(0));
  impl->set_sizes_and_strides({count, t.size(1)}, t.strides());
  return at::Tensor(std::move(impl));
}

}  // namespace fastllm::runtime
