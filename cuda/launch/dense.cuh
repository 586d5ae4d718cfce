// How products of many rows (cuda/gemm/dense_stream.cuh) are launched.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <string>

#include "core/base/check.h"
#include "cuda/gemm/dense_stream.cuh"
#include "cuda/launch/dense_choice.h"
#include "cuda/launch/launch.h"
#include "cuda/launch/overlap.cuh"
#include "cuda/launch/tensor_map.h"
#include "ops/contract/dense_linear.h"

namespace fastllm::cuda {

using ClustersByDevice = std::array<std::atomic<int32_t>, 64>;  // 0: not known

// How many clusters of a kernel of this shape the current device holds at once; asked once per device, `known` is the
// kernel's own.
template <typename Shape>
int32_t DenseClusters(const void* kernel, ClustersByDevice& known, const char* op) {
  int device = 0;
  cudaError_t e = cudaGetDevice(&device);
  FASTLLM_CHECK(e == cudaSuccess && device < 64, std::string(op) + ": cudaGetDevice: " + cudaGetErrorString(e));
  if (const int32_t n = known[device].load(); n > 0) return n;
  AllowSharedMemory(kernel, Shape::kSharedBytes, op);
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = Shape::kCluster;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(CurrentDevice().multiprocessors / Shape::kCluster * Shape::kCluster);
  config.blockDim = dim3(kDenseThreads);
  config.dynamicSmemBytes = Shape::kSharedBytes;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int clusters = 0;
  e = cudaOccupancyMaxActiveClusters(&clusters, kernel, &config);
  FASTLLM_CHECK(e == cudaSuccess && clusters > 0, std::string(op) + ": no room for a cluster of " +
                                                      std::to_string(Shape::kCluster) + ": " + cudaGetErrorString(e));
  FASTLLM_CHECK(clusters * Shape::kCluster <= ops::kDenseBlocks,
                std::string(op) + ": " + std::to_string(clusters * Shape::kCluster) + " blocks, at most " +
                    std::to_string(ops::kDenseBlocks));
  known[device] = clusters;
  return clusters;
}

// Throws InternalError where p is not as the kernel wants it: n and k multiples of 16 and 8, pointers aligned.
template <typename Shape>
void LaunchDense(const ops::DenseLinearParams& p, const DenseTiling& tiling, cudaStream_t stream, const char* op) {
  static ClustersByDevice known{};
  const ops::LinearParams& l = p.linear;
  FASTLLM_CHECK(l.n % 16 == 0 && l.k % 8 == 0 && Aligned16(l.x) && Aligned16(l.weight) && Aligned16(l.out) &&
                    Aligned16(p.workspace) && p.workspace != nullptr && !l.out_f32 && (l.bias == nullptr || !p.gated),
                std::string(op) + ": " + std::to_string(l.k) + " to " + std::to_string(l.n) +
                    "; multiples of 8 and 16, 16-byte aligned, a workspace, no bias beside a gate");
  DenseArgs a;
  a.weight = MakeRowPairBoxes(
      {l.weight, l.n, l.k, Shape::kGated, Shape::kRows / (Shape::kShareWeight ? Shape::kCluster : 1)}, op);
  a.x = MakeMatrixBoxes({l.x, l.num_rows, l.k, Shape::kTokens / (Shape::kShareWeight ? 1 : Shape::kCluster)}, op);
  a.out = static_cast<bf16*>(l.out);
  a.bias = static_cast<const bf16*>(l.bias);
  a.flags = static_cast<uint32_t*>(p.workspace);
  a.partial = reinterpret_cast<float4*>(static_cast<char*>(p.workspace) + ops::kDenseFlagBytes);
  a.m = l.num_rows;
  a.n = l.n;
  a.tiles = CutDense(CeilDiv(l.n, Shape::kColumns * (Shape::kShareWeight ? 1 : Shape::kCluster)),
                     CeilDiv(l.num_rows, Shape::kTokens * (Shape::kShareWeight ? Shape::kCluster : 1)),
                     CeilDiv(l.k, kDenseDepth), tiling,
                     DenseClusters<Shape>(reinterpret_cast<const void*>(&DenseKernel<Shape>), known, op));
  a.once = a.tiles.token_tiles == 1;
  LaunchCluster(&DenseKernel<Shape>, dim3(a.tiles.clusters * Shape::kCluster), Shape::kCluster, kDenseThreads,
                Shape::kSharedBytes, stream, op, a);
}

}  // namespace fastllm::cuda
