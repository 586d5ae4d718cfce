// Launcher of sample.
#include <algorithm>
#include <string>

#include "core/base/check.h"
#include "cuda/launch/launch.h"
#include "cuda/sampling/sample.cuh"

namespace fastllm::cuda {
namespace {

constexpr int32_t kMaxHeldBytes = 192 * 1024;  // of a slice, beside the static shared memory

// Whether the code that this device runs was compiled for sm_90 or later, where clusters exist.
bool HasClusterCode() {
  cudaFuncAttributes attributes;
  const cudaError_t e = cudaFuncGetAttributes(&attributes, &SampleKernel<true>);
  FASTLLM_CHECK(e == cudaSuccess, std::string("sample: ") + cudaGetErrorString(e));
  return attributes.binaryVersion >= 90;
}

void LaunchClusters(const ops::SampleParams& p, int32_t slice, cudaStream_t stream) {
  const auto bytes = static_cast<int32_t>(slice * sizeof(float));
  AllowSharedMemory(reinterpret_cast<const void*>(&SampleKernel<true>), bytes, "sample");
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kSampleBlocks, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(p.num_rows * kSampleBlocks);
  config.blockDim = dim3(kSampleThreads);
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  const cudaError_t e = cudaLaunchKernelEx(&config, &SampleKernel<true>, p, slice);
  FASTLLM_CHECK(e == cudaSuccess, std::string("sample: ") + cudaGetErrorString(e));
}

void Sample(const ops::SampleParams& p, const ops::OpContext& ctx) {
  if (p.num_rows <= 0 || p.vocab <= 0) return;
  static const bool clusters = HasClusterCode();
  const int32_t slice = CeilDiv(CeilDiv(p.vocab, kSampleBlocks), 4) * 4;
  if (clusters && slice * int64_t{sizeof(float)} <= kMaxHeldBytes) {
    LaunchClusters(p, slice, StreamOf(ctx));
  } else {
    const int32_t bytes = CeilDiv(p.vocab, 32) * 4;
    AllowSharedMemory(reinterpret_cast<const void*>(&SampleKernel<false>), bytes, "sample");
    SampleKernel<false><<<p.num_rows, kSampleThreads, bytes, StreamOf(ctx)>>>(p, p.vocab);
  }
  CheckLaunch("sample");
}

}  // namespace

void RegisterSampleOps(ops::OpTable& table) {
  AddOp(table, ops::OpId::kSample, ops::DType::kF32, "cuda.sample.f32", &Sample);
}

}  // namespace fastllm::cuda
