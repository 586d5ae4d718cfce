// Rows of activations (or of a weight) to 8-bit floats with a scale each (contract/fp8.h), as they are or straight from
// the op before: RMS norm with the residual add, SiLU-mul. One block per row; the row stays in registers between the
// largest magnitude and the rounding. Values are rounded to T first, so that fused and separate calls agree. The next
// kernel, a product that starts with reading its weight, may start early; with `early` before the one before this is
// done.
#pragma once

#include "cuda/common/launch_order.cuh"
#include "cuda/quant/fp8_row_kinds.cuh"
#include "ops/contract/fp8.h"

namespace fastllm::cuda {

inline constexpr float kFp8LeastMax = 1e-30f;
inline constexpr float kFp8PerMax = 1.0f / 448.0f;

// Largest of the block's values, to every thread; NaN is passed over. shared: 32 floats.
__device__ __forceinline__ float BlockMax(float x, float* shared) {
  const int lane = threadIdx.x & 31, warps = blockDim.x >> 5;
#pragma unroll
  for (int d = 16; d > 0; d /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, d));
  if (warps == 1) return x;
  if (lane == 0) shared[threadIdx.x >> 5] = x;
  __syncthreads();
  x = lane < warps ? shared[lane] : 0.0f;
#pragma unroll
  for (int d = 16; d > 0; d /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, d));
  return x;
}

// The scale of a row whose largest magnitude is amax; thread 0 stores it. Returns what values are multiplied by.
__device__ __forceinline__ float Fp8Inverse(float amax, float* scale) {
  const float s = fmaxf(amax, kFp8LeastMax) * kFp8PerMax;
  if (threadIdx.x == 0) *scale = s;
  return 1.0f / s;
}

template <typename T>
__device__ __forceinline__ void StoreFp8Pack(uint8_t* to, const Pack<T>& v, float inverse) {
  constexpr int kSize = Pack<T>::kSize;
  uint32_t words[kSize / 4];
#pragma unroll
  for (int e = 0; e < kSize; e += 4) {
    const uint32_t low = PackTwoFp8(ToFloat(v.v[e]) * inverse, ToFloat(v.v[e + 1]) * inverse);
    const uint32_t high = PackTwoFp8(ToFloat(v.v[e + 2]) * inverse, ToFloat(v.v[e + 3]) * inverse);
    words[e / 4] = low | high << 16;
  }
  if constexpr (kSize == 8) {
    *reinterpret_cast<uint2*>(to) = make_uint2(words[0], words[1]);
  } else {
    *reinterpret_cast<uint32_t*>(to) = words[0];
  }
}

// Threads of a block at most: eight packs of a row and of a second one take more registers than a thousand threads
// have.
constexpr int Fp8RowsThreads(int packs) { return packs >= 8 ? 256 : 1024; }

template <typename T, int kPacks, typename Row>
__global__ void __launch_bounds__(Fp8RowsThreads(kPacks))
    Fp8RowsKernel(const Row row, const ops::Fp8Rows out, int32_t packs, bool early) {
  constexpr int kSize = Pack<T>::kSize;
  __shared__ float shared[2][32];
  if (early) AllowNext();
  const auto fetched = row.template Fetch<kPacks>(packs);
  WaitForPrevious();
  if (!early) AllowNext();
  Pack<T> v[kPacks];
  row.template Load<kPacks>(fetched, v, packs, shared[0]);
  float amax = 0.0f;
#pragma unroll
  for (int j = 0; j < kPacks; ++j) {
    if (j * blockDim.x + threadIdx.x >= packs) break;
#pragma unroll
    for (int e = 0; e < kSize; ++e) amax = fmaxf(amax, fabsf(ToFloat(v[j].v[e])));
  }
  const float inverse = Fp8Inverse(BlockMax(amax, shared[1]), out.scale + blockIdx.x);
  uint8_t* to = out.q + static_cast<int64_t>(blockIdx.x) * packs * kSize;
#pragma unroll
  for (int j = 0; j < kPacks; ++j) {
    const int32_t i = j * blockDim.x + threadIdx.x;
    if (i >= packs) break;
    StoreFp8Pack(to + i * kSize, v[j], inverse);
  }
}

// Any k and alignment: one element at a time, each computed twice.
template <typename Row>
__global__ void __launch_bounds__(256) Fp8RowsScalarKernel(Row row, const ops::Fp8Rows out, int32_t k) {
  __shared__ float shared[2][32];
  WaitForPrevious();
  AllowNext();
  row.Begin(shared[0]);
  float amax = 0.0f;
  for (int32_t i = threadIdx.x; i < k; i += blockDim.x) amax = fmaxf(amax, fabsf(row.At(i)));
  const float inverse = Fp8Inverse(BlockMax(amax, shared[1]), out.scale + blockIdx.x);
  uint8_t* to = out.q + static_cast<int64_t>(blockIdx.x) * k;
  for (int32_t i = threadIdx.x; i < k; i += blockDim.x) {
    to[i] = static_cast<uint8_t>(PackTwoFp8(row.At(i) * inverse, 0.0f));
  }
}

}  // namespace fastllm::cuda
