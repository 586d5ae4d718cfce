#include "runtime/device/runtime_ops.h"

namespace fastllm::runtime {

const ops::OpTable& RuntimeOps() {
  static const ops::OpTable table = [] {
    ops::OpTable t = ops::BuiltinOps();
#ifdef FASTLLM_CUDA
    RegisterCudaLinear(t);
    RegisterCudaFp8Linear(t);
#endif
    return t;
  }();
  return table;
}

void ReleaseStream([[maybe_unused]] ops::Device device, [[maybe_unused]] void* stream) {
#ifdef FASTLLM_CUDA
  if (device == ops::Device::kCuda) ReleaseCudaStream(stream);
#endif
}

}  // namespace fastllm::runtime
