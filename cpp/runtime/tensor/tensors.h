// Makes, cuts and reads tensors with libtorch's core (c10) alone. The operators of libtorch (libtorch_cpu) take 0.3 s
// and 120 MiB to load, so no file that an engine on the CPU needs calls one: such a build links c10 only, and a call of
// an operator does not link (cpp/docs/adr/0004-c10-alone.md).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <cstdint>
#include <memory>
#include <type_traits>

#include "core/base/check.h"

namespace fastllm::runtime {

// A contiguous tensor of undefined contents, in host memory or, in builds with CUDA, on the device.
at::Tensor Empty(at::IntArrayRef sizes, const at::TensorOptions& options);

// A contiguous tensor over memory at `data`, which `owner` keeps; without an owner the caller does.
at::Tensor Wrap(void* data, at::IntArrayRef sizes, const at::TensorOptions& options, std::shared_ptr<void> owner);

// Rows [first, first + count) of a tensor [n, cols], over the same memory.
at::Tensor RowsOf(const at::Tensor& t, int64_t first, int64_t count);

// The elements of a tensor, which must be Ts.
template <typename T>
T* DataOf(const at::Tensor& t) {
  FASTLLM_CHECK(t.scalar_type() == c10::CppTypeToScalarType<std::remove_const_t<T>>::value,
                "a tensor holds elements of another type than is read");
  if constexpr (std::is_const_v<T>) {
    return static_cast<T*>(t.const_data_ptr());
  } else {
    return static_cast<T*>(t.mutable_data_ptr());
  }
}

}  // namespace fastllm::runtime
