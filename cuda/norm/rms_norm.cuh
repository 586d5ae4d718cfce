// RMS norm with the residual add fused (contract/rms_norm.h). One block per row; the row stays in registers between the
// sum and the scaling. The residual is rounded to T when it is stored, and the norm is that of the rounded row, so that
// fused and separate calls agree.
#pragma once

#include "cuda/common/launch_order.cuh"
#include "cuda/common/reduce.cuh"
#include "cuda/common/types.cuh"

namespace fastllm::cuda {

// early: the next kernel may start while this one runs.
template <typename T, int kPacks, bool kResidual>
__global__ void __launch_bounds__(1024)
    RmsNormKernel(T* __restrict__ out, const T* x, T* __restrict__ residual, const T* __restrict__ weight,
                  int32_t packs, float eps, bool early) {
  constexpr int kSize = Pack<T>::kSize;
  __shared__ float shared[32];
  if (early) AllowNext();
  WaitForPrevious();
  const int64_t row = static_cast<int64_t>(blockIdx.x) * packs * kSize;
  Pack<T> v[kPacks];
  Pack<T> r[kPacks];
#pragma unroll
  for (int j = 0; j < kPacks; ++j) {
    const int32_t i = j * blockDim.x + threadIdx.x;
    if (i >= packs) break;
    v[j] = LoadPack(x + row + i * kSize);
    if constexpr (kResidual) r[j] = LoadPack(residual + row + i * kSize);
  }
  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < kPacks; ++j) {
    const int32_t i = j * blockDim.x + threadIdx.x;
    if (i >= packs) break;
#pragma unroll
    for (int e = 0; e < kSize; ++e) {
      if constexpr (kResidual) v[j].v[e] = FromFloat<T>(ToFloat(v[j].v[e]) + ToFloat(r[j].v[e]));
      const float f = ToFloat(v[j].v[e]);
      sum += f * f;
    }
    if constexpr (kResidual) StorePack(residual + row + i * kSize, v[j]);
  }
  const float mean = BlockSum(sum, shared) / static_cast<float>(packs * kSize);
  const float scale = rsqrtf(mean + eps);
#pragma unroll
  for (int j = 0; j < kPacks; ++j) {
    const int32_t i = j * blockDim.x + threadIdx.x;
    if (i >= packs) break;
    const Pack<T> w = LoadPack(weight + i * kSize);
#pragma unroll
    for (int e = 0; e < kSize; ++e) v[j].v[e] = FromFloat<T>(ToFloat(v[j].v[e]) * scale * ToFloat(w.v[e]));
    StorePack(out + row + i * kSize, v[j]);
  }
}

// Any hidden size and alignment: one element at a time, the row read twice.
template <typename T>
__global__ void __launch_bounds__(256)
    RmsNormScalarKernel(T* out, const T* x, T* residual, const T* weight, int32_t hidden, float eps) {
  __shared__ float shared[32];
  const int64_t row = static_cast<int64_t>(blockIdx.x) * hidden;
  float sum = 0.0f;
  for (int32_t i = threadIdx.x; i < hidden; i += blockDim.x) {
    T v = x[row + i];
    if (residual != nullptr) {
      v = FromFloat<T>(ToFloat(v) + ToFloat(residual[row + i]));
      residual[row + i] = v;
    }
    sum += ToFloat(v) * ToFloat(v);
  }
  const float scale = rsqrtf(BlockSum(sum, shared) / static_cast<float>(hidden) + eps);
  const T* from = residual != nullptr ? residual : x;
  for (int32_t i = threadIdx.x; i < hidden; i += blockDim.x) {
    out[row + i] = FromFloat<T>(ToFloat(from[row + i]) * scale * ToFloat(weight[i]));
  }
}

}  // namespace fastllm::cuda
