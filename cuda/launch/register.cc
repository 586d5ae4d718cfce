#include <array>
#include <mutex>
#include <string>

#include "core/base/check.h"
#include "cuda/launch/launch.h"

namespace fastllm {
namespace cuda {
namespace {

constexpr int kMaxDevices = 64;

int DeviceIndex() {
  int device = 0;
  const cudaError_t e = cudaGetDevice(&device);
  FASTLLM_CHECK(e == cudaSuccess && device < kMaxDevices, std::string("cudaGetDevice: ") + cudaGetErrorString(e));
  return device;
}

}  // namespace

void CheckLaunch(const char* op) {
  const cudaError_t e = cudaGetLastError();
  FASTLLM_CHECK(e == cudaSuccess, std::string(op) + ": " + cudaGetErrorString(e));
}

const DeviceFacts& CurrentDevice() {
  static std::array<DeviceFacts, kMaxDevices> facts;
  static std::array<std::once_flag, kMaxDevices> once;
  const int device = DeviceIndex();
  std::call_once(once[device], [device] {
    int sms = 0, major = 0, minor = 0;
    cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    facts[device] = {sms, major * 10 + minor};
  });
  return facts[device];
}

void AllowSharedMemory(const void* kernel, int32_t bytes, const char* op) {
  const cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  FASTLLM_CHECK(e == cudaSuccess, std::string(op) + ": " + std::to_string(bytes) +
                                      " bytes of shared memory refused: " + cudaGetErrorString(e));
}

}  // namespace cuda

namespace ops {

void RegisterCudaOps(OpTable& table) {
  cuda::RegisterRowOps(table);
  cuda::RegisterRopeOps(table);
  cuda::RegisterAttentionOps(table);
  cuda::RegisterSampleOps(table);
  cuda::RegisterStepOps(table);
  cuda::RegisterSkinnyLinearOps(table);
  cuda::RegisterFusedLinearOps(table);
  cuda::RegisterDenseLinearOps(table);
  cuda::RegisterFp8RowOps(table);
  cuda::RegisterFp8LinearOps(table);
  cuda::RegisterDenseFp8LinearOps(table);
  cuda::RegisterFlashInferOps(table);
}

}  // namespace ops
}  // namespace fastllm
