// Launches that may start while the kernel before them ends (cuda/common/launch_order.cuh).
#pragma once

#include <cuda_runtime.h>

#include <string>
#include <utility>

#include "core/base/check.h"
#include "cuda/launch/launch.h"

namespace fastllm::cuda {

// LaunchOverlapped() below, in clusters of `cluster` blocks along x (sm_90 and up where that is more than one).
template <typename... Params, typename... Args>
void LaunchCluster(void (*kernel)(Params...), dim3 grid, int32_t cluster, int32_t threads, int32_t shared_bytes,
                   cudaStream_t stream, const char* op, Args&&... args) {
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = cluster;
  attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = CurrentDevice().compute_capability < 90 ? 0 : cluster > 1 ? 2 : 1;
  const cudaError_t e = cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...);
  FASTLLM_CHECK(e == cudaSuccess, std::string(op) + ": " + cudaGetErrorString(e));
}

// As kernel<<<grid, block, shared_bytes, stream>>>(args...), by programmatic dependent launch where the device has it.
// Every thread of such a kernel must call WaitForPrevious() before it reads what another kernel wrote, and before it
// returns: who waits for this kernel relies on it for all before.
template <typename... Params, typename... Args>
void LaunchOverlapped(void (*kernel)(Params...), dim3 grid, int32_t threads, int32_t shared_bytes, cudaStream_t stream,
                      const char* op, Args&&... args) {
  LaunchCluster(kernel, grid, 1, threads, shared_bytes, stream, op, std::forward<Args>(args)...);
}

// From so many rows on a kernel over rows starts while its predecessor ends, and lets the next kernel, most often a
// product that fetches its first weights, start beside it. Over fewer decode steps have had no gain from it (and those
// of 8 rows a loss). The kernel waits as LaunchOverlapped() says.
inline constexpr int32_t kOverlappedRows = 17;

template <typename... Params, typename... Args>
void LaunchRows(void (*kernel)(Params...), int32_t rows, dim3 grid, int32_t threads, cudaStream_t stream,
                const char* op, Args&&... args) {
  if (rows >= kOverlappedRows) {
    LaunchOverlapped(kernel, grid, threads, 0, stream, op, std::forward<Args>(args)...);
  } else {
    kernel<<<grid, threads, 0, stream>>>(std::forward<Args>(args)...);
  }
}

}  // namespace fastllm::cuda
