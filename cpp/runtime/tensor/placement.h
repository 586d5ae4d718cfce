// Placement: where the tensors of a model live and what type their elements have.
#pragma once

#include <c10/core/TensorOptions.h>

#include <string>

#include "ops/contract/common.h"
#include "ops/table/op_table.h"

namespace fastllm::runtime {

inline c10::ScalarType ScalarTypeOf(ops::DType t) {
  switch (t) {
    case ops::DType::kF32: return c10::ScalarType::Float;
    case ops::DType::kF16: return c10::ScalarType::Half;
    case ops::DType::kBF16: return c10::ScalarType::BFloat16;
    case ops::DType::kI8: return c10::ScalarType::Char;
    case ops::DType::kF8E4M3: return c10::ScalarType::Float8_e4m3fn;
  }
  return c10::ScalarType::Undefined;
}

struct Placement {
  ops::Device device = ops::Device::kCpu;
  ops::DType dtype = ops::DType::kF32;  // of weights, activations and the KV cache
  ops::Backend attention_backend = ops::Backend::kAny;

  // Of tensors of type t on the device.
  c10::TensorOptions Options(ops::DType t) const { return Options(ScalarTypeOf(t)); }
  c10::TensorOptions Options(c10::ScalarType t) const {
    return c10::TensorOptions().dtype(t).device(device == ops::Device::kCpu ? c10::kCPU : c10::kCUDA);
  }
};

// The backend of attention that an option names; the field's check has seen to it that there is one.
inline ops::Backend AttentionBackendOf(const std::string& name) {
  for (const ops::Backend b : {ops::Backend::kFastllm, ops::Backend::kFlashInfer}) {
    if (name == ops::BackendName(b)) return b;
  }
  return ops::Backend::kAny;
}

}  // namespace fastllm::runtime
