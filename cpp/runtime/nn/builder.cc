#include "runtime/nn/builder.h"

#include <algorithm>
#include <string>

#include "core/base/check.h"
#include "ops/table/device.h"
#include "runtime/tensor/tensors.h"

namespace fastllm::runtime {

at::Tensor Builder::Constant(const std::vector<float>& values) const {
  const auto size = static_cast<int64_t>(values.size());
  at::Tensor tensor = Empty({size}, placement_.Options(ops::DType::kF32));
  const ops::DeviceApi* const device = ops::FindDevice(placement_.device);
  FASTLLM_CHECK(device != nullptr, "a table for a device that is not there");
  device->Copy(tensor.mutable_data_ptr(), values.data(), tensor.nbytes(), nullptr);
  device->Synchronize(nullptr);
  return tensor;
}

Slice Builder::Share(int64_t size, int64_t unit, const char* what, bool repeat) {
  const int64_t ranks = tp_size();
  if (size % ranks == 0) return {size / ranks * tp_rank() * unit, size / ranks * unit, size * unit};
  if (repeat && ranks % size == 0) return {tp_rank() / (ranks / size) * unit, unit, size * unit};
  if (status_.ok()) {
    status_ = Status::InvalidArgument("tensor_parallel_size is " + std::to_string(ranks) +
                                      ", which does not divide the " + std::to_string(size) + " " + what +
                                      " of the model" + (repeat ? ", nor is it a multiple of them" : ""));
  }
  return size * unit;
}

Slice Builder::UnevenShare(int64_t size) const {
  const int64_t share = PaddedShare(size);
  const int64_t begin = std::min(size, share * tp_rank());
  return {begin, std::min(share, size - begin), size};
}

}  // namespace fastllm::runtime
