// How products of few rows in 8-bit floats (cuda/gemm/fp8_stream.cuh) are launched.
#pragma once

#include "cuda/gemm/fp8_stream.cuh"
#include "cuda/launch/fp8_choice.h"
#include "cuda/launch/launch.h"
#include "cuda/launch/overlap.cuh"
#include "cuda/launch/tensor_map.h"
#include "ops/contract/fp8.h"

namespace fastllm::cuda {

// type: of the output. splits: blocks that share k, a cluster. early: Fp8StreamArgs.
template <typename Shape>
void LaunchFp8Stream(const ops::Fp8LinearParams& p, ops::DType type, int32_t splits, bool early, cudaStream_t stream,
                     const char* op) {
  Fp8StreamArgs a;
  // The copy engine takes pairs of bytes for elements.
  a.weight = MakeMatrixBoxes({p.weight.q, p.n, p.k / 2, kFp8Columns}, op);
  a.x = MakeMatrixBoxes({p.x.q, p.num_rows, p.k / 2, Shape::kTokens}, op);
  a.out = p.out;
  a.x_scale = p.x.scale;
  a.weight_scale = p.weight.scale;
  a.bias = p.bias;
  a.m = p.num_rows;
  a.n = p.n;
  a.k = p.k;
  a.early = early;
  a.ahead = early ? Fp8Ahead(p.n, p.k) : 0;
  a.type = type;
  const auto kernel = &Fp8StreamKernel<Shape>;
  AllowSharedMemory(reinterpret_cast<const void*>(kernel), Shape::kSharedBytes, op);
  const int32_t tiles = CeilDiv(p.n, kFp8Columns) * CeilDiv(p.num_rows, Shape::kTokens);
  LaunchCluster(kernel, dim3(splits, tiles), splits, kFp8Threads, Shape::kSharedBytes, stream, op, a);
}

}  // namespace fastllm::cuda
