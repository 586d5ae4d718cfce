// Launcher of sample.
#include <algorithm>
#include <string>

#include "core/base/check.h"
#include "cuda/launch/launch.h"
#include "cuda/sampling/logprobs.cuh"

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

// A cluster of blocks for each row, a slice of it in each.
template <typename Params>
void LaunchClusters(void (*kernel)(const Params, int32_t), const Params& p, int32_t slice, cudaStream_t stream,
                    const char* op) {
  const auto bytes = static_cast<int32_t>(slice * sizeof(float));
  AllowSharedMemory(reinterpret_cast<const void*>(kernel), bytes, op);
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
  const cudaError_t e = cudaLaunchKernelEx(&config, kernel, p, slice);
  FASTLLM_CHECK(e == cudaSuccess, std::string(op) + ": " + cudaGetErrorString(e));
}

int32_t SliceOf(int32_t vocab) { return CeilDiv(CeilDiv(vocab, kSampleBlocks), 4) * 4; }

// Whether clusters hold rows of this vocabulary.
bool UseClusters(int32_t vocab) {
  static const bool clusters = HasClusterCode();
  return clusters && SliceOf(vocab) * int64_t{sizeof(float)} <= kMaxHeldBytes;
}

void Logprobs(const ops::LogprobsParams& p, const ops::OpContext& ctx) {
  FASTLLM_CHECK(p.top_stride <= kMaxCandidates, "logprobs: " + std::to_string(p.top_stride) +
                                                    " top tokens, the limit on this device is " +
                                                    std::to_string(kMaxCandidates));
  if (p.num_rows <= 0 || p.vocab <= 0) return;
  if (UseClusters(p.vocab)) {
    LaunchClusters<ops::LogprobsParams>(&LogprobsKernel<true>, p, SliceOf(p.vocab), StreamOf(ctx), "logprobs");
  } else {
    LogprobsKernel<false><<<p.num_rows, kSampleThreads, 0, StreamOf(ctx)>>>(p, p.vocab);
  }
  CheckLaunch("logprobs");
}

void Sample(const ops::SampleParams& p, const ops::OpContext& ctx) {
  if (p.num_rows <= 0 || p.vocab <= 0) return;
  if (UseClusters(p.vocab)) {
    LaunchClusters<ops::SampleParams>(&SampleKernel<true>, p, SliceOf(p.vocab), StreamOf(ctx), "sample");
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
  AddOp(table, ops::OpId::kLogprobs, ops::DType::kF32, "cuda.logprobs.f32", &Logprobs);
}

}  // namespace fastllm::cuda
