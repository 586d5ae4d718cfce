// out = silu(gate) * up (contract/silu_mul.h).
#pragma once

#include "cuda/common/launch_order.cuh"
#include "cuda/common/types.cuh"

namespace fastllm::cuda {

__device__ __forceinline__ float SiluTimes(float gate, float up) { return __fdividef(gate, 1.0f + __expf(-gate)) * up; }

// blockIdx.y walks the tokens, x the packs of a row; each thread does kPacks packs of its row.
template <typename T, int kPacks>
__global__ void __launch_bounds__(256) SiluMulKernel(T* __restrict__ out, const T* gate_up, int32_t packs) {
  constexpr int kSize = Pack<T>::kSize;
  WaitForPrevious();
  const int64_t token = blockIdx.y;
  const T* gate = gate_up + token * 2 * packs * kSize;
  const T* up = gate + static_cast<int64_t>(packs) * kSize;
  T* to = out + token * packs * kSize;
  const int32_t first = blockIdx.x * kPacks * blockDim.x + threadIdx.x;
  Pack<T> g[kPacks];
  Pack<T> u[kPacks];
#pragma unroll
  for (int j = 0; j < kPacks; ++j) {
    const int32_t i = first + j * blockDim.x;
    if (i < packs) {
      g[j] = LoadPack(gate + i * kSize);
      u[j] = LoadPack(up + i * kSize);
    }
  }
#pragma unroll
  for (int j = 0; j < kPacks; ++j) {
    const int32_t i = first + j * blockDim.x;
    if (i < packs) {
#pragma unroll
      for (int e = 0; e < kSize; ++e) g[j].v[e] = FromFloat<T>(SiluTimes(ToFloat(g[j].v[e]), ToFloat(u[j].v[e])));
      StorePack(to + i * kSize, g[j]);
    }
  }
}

// Any n and alignment.
template <typename T>
__global__ void __launch_bounds__(256) SiluMulScalarKernel(T* out, const T* gate_up, int32_t n) {
  const int64_t token = blockIdx.y;
  const T* gate = gate_up + token * 2 * n;
  const int32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[token * n + i] = FromFloat<T>(SiluTimes(ToFloat(gate[i]), ToFloat(gate[n + i])));
}

}  // namespace fastllm::cuda
