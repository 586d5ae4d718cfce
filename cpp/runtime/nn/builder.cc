#include "runtime/nn/builder.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

namespace fastllm::runtime {

at::Tensor Builder::Constant(const std::vector<float>& values) const {
  const auto size = static_cast<int64_t>(values.size());
  at::Tensor tensor = at::empty({size}, placement_.Options(ops::DType::kF32));
  const at::Tensor host =
      at::from_blob(const_cast<float*>(values.data()), {size}, at::TensorOptions().dtype(at::kFloat));
  return tensor.copy_(host);
}

}  // namespace fastllm::runtime
