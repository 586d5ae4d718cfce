// Placement: where the tensors of a model live and what type their elements have.
#pragma once

#include <c10/core/TensorOptions.h>

#include "ops/contract/common.h"
#include "ops/table/op_table.h"

namespace fastllm::runtime {

inline c10::ScalarType ScalarTypeOf(ops::DType t) {
  switch (t) {
    case ops::DType::kF32: return c10::ScalarType::Float;
    case ops::DType::kF16: return c10::ScalarType::Half;
    case ops::DType::kBF16: return c10::ScalarType::BFloat16;
    case ops::DType::kI8: return c10::ScalarType::Char;
  }
  return c10::ScalarType::Undefined;
}

struct Placement {
  ops::Device device = ops::Device::kCpu;
  ops::DType dtype = ops::DType::kF32;  // of weights, activations and the KV cache

  // Of tensors of type t on the device.
  c10::TensorOptions Options(ops::DType t) const { return Options(ScalarTypeOf(t)); }
  c10::TensorOptions Options(c10::ScalarType t) const {
    return c10::TensorOptions().dtype(t).device(device == ops::Device::kCpu ? c10::kCPU : c10::kCUDA);
  }
};

}  // namespace fastllm::runtime
