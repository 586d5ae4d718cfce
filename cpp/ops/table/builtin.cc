// The only file that knows which arms this build was compiled with.
#include "ops/table/device.h"
#include "ops/table/op_table.h"

namespace fastllm::ops {

const OpTable& BuiltinOps() {
  static const OpTable table = [] {
    OpTable t;
    RegisterCpuOps(t);
#ifdef FASTLLM_CUDA
    RegisterCudaOps(t);
#endif
    return t;
  }();
  return table;
}

const DeviceApi* FindDevice(Device device) {
  if (device == Device::kCpu) return &HostDevice();
#ifdef FASTLLM_CUDA
  return CudaDevice();
#else
  return nullptr;
#endif
}

}  // namespace fastllm::ops
