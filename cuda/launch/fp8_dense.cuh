// How products of many rows in 8-bit floats (cuda/gemm/fp8_dense.cuh) are launched.
#pragma once

#include <string>

#include "core/base/check.h"
#include "cuda/gemm/fp8_dense.cuh"
#include "cuda/launch/dense.cuh"
#include "cuda/launch/launch.h"
#include "cuda/launch/overlap.cuh"
#include "cuda/launch/tensor_map.h"
#include "ops/contract/fp8.h"

namespace fastllm::cuda {

// Throws InternalError where p is not as the kernel wants it: n and k multiples of 16, pointers aligned.
template <typename Shape, bool kPromote = false>
void LaunchFp8Dense(const ops::DenseFp8LinearParams& p, const DenseTiling& tiling, cudaStream_t stream,
                    const char* op) {
  static ClustersByDevice known{};
  const ops::Fp8LinearParams& l = p.linear;
  FASTLLM_CHECK(l.n % ops::kFp8Multiple == 0 && l.k % ops::kFp8Multiple == 0 && Aligned16(l.x.q) &&
                    Aligned16(l.weight.q) && Aligned16(l.out) && Aligned16(p.workspace) && p.workspace != nullptr &&
                    (l.bias == nullptr || !p.gated),
                std::string(op) + ": " + std::to_string(l.k) + " to " + std::to_string(l.n) + "; multiples of " +
                    std::to_string(ops::kFp8Multiple) + ", 16-byte aligned, a workspace, no bias beside a gate");
  Fp8DenseArgs a;
  a.x_scale = l.x.scale;
  a.weight_scale = l.weight.scale;
  DenseArgs& d = a.dense;
  d.weight = MakeRowPairBoxes(
      {l.weight.q, l.n, l.k / 2, Shape::kGated, Shape::kRows / (Shape::kShareWeight ? Shape::kCluster : 1)}, op);
  d.x = MakeMatrixBoxes({l.x.q, l.num_rows, l.k / 2, Shape::kTokens / (Shape::kShareWeight ? 1 : Shape::kCluster)}, op);
  d.out = static_cast<bf16*>(l.out);
  d.bias = static_cast<const bf16*>(l.bias);
  d.flags = static_cast<uint32_t*>(p.workspace);
  d.partial = reinterpret_cast<float4*>(static_cast<char*>(p.workspace) + ops::kDenseFlagBytes);
  d.m = l.num_rows;
  d.n = l.n;
  d.tiles = CutDense(CeilDiv(l.n, Shape::kColumns * (Shape::kShareWeight ? 1 : Shape::kCluster)),
                     CeilDiv(l.num_rows, Shape::kTokens * (Shape::kShareWeight ? Shape::kCluster : 1)),
                     CeilDiv(l.k, kFp8DenseDepth), tiling,
                     DenseClusters<Shape>(reinterpret_cast<const void*>(&Fp8DenseKernel<Shape, kPromote>), known, op));
  d.once = d.tiles.token_tiles == 1;
  LaunchCluster(&Fp8DenseKernel<Shape, kPromote>, dim3(d.tiles.clusters * Shape::kCluster), Shape::kCluster,
                kDenseThreads, Shape::kSharedBytes, stream, op, a);
}

}  // namespace fastllm::cuda
