// Where the rows come from that fp8_rows.cuh rounds: as they are, RMS norm with the residual add, SiLU-mul.
#pragma once

#include "cuda/common/reduce.cuh"
#include "cuda/common/types.cuh"

namespace fastllm::cuda {

// Each kind has, for the row of this block,
//   Fetch<kPacks>(packs)    what does not depend on the kernel before, to be read while that still runs
//   Load<kPacks>(fetched, v, packs)  packs j * blockDim.x + threadIdx.x of it, computed, in T
//   Begin(shared), At(i)    the same one element at a time, for shapes that are no whole packs
struct NothingFetched {};

template <typename T>
struct PlainRow {
  const T* x;
  int32_t k;

  template <int kPacks>
  __device__ __forceinline__ NothingFetched Fetch(int32_t) const {
    return {};
  }
  template <int kPacks>
  __device__ __forceinline__ void Load(const NothingFetched&, Pack<T> (&v)[kPacks], int32_t packs, float*) const {
    const T* from = x + static_cast<int64_t>(blockIdx.x) * k;
#pragma unroll
    for (int j = 0; j < kPacks; ++j) {
      const int32_t i = j * blockDim.x + threadIdx.x;
      if (i < packs) v[j] = LoadPack(from + i * Pack<T>::kSize);
    }
  }
  __device__ __forceinline__ void Begin(float*) {}
  __device__ __forceinline__ float At(int32_t i) const { return ToFloat(x[static_cast<int64_t>(blockIdx.x) * k + i]); }
};

template <typename T>
struct NormRow {
  const T* x;
  T* residual;  // or null
  const T* weight;
  int32_t k;
  float eps;
  float scale = 0.0f;  // of the scalar form

  // The gain.
  template <int kPacks>
  struct Fetched {
    Pack<T> w[kPacks];
  };
  template <int kPacks>
  __device__ __forceinline__ Fetched<kPacks> Fetch(int32_t packs) const {
    Fetched<kPacks> f;
#pragma unroll
    for (int j = 0; j < kPacks; ++j) {
      const int32_t i = j * blockDim.x + threadIdx.x;
      if (i < packs) f.w[j] = LoadPack(weight + i * Pack<T>::kSize);
    }
    return f;
  }
  template <int kPacks>
  __device__ __forceinline__ void Load(const Fetched<kPacks>& fetched, Pack<T> (&v)[kPacks], int32_t packs,
                                       float* shared) const {
    constexpr int kSize = Pack<T>::kSize;
    const int64_t row = static_cast<int64_t>(blockIdx.x) * k;
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < kPacks; ++j) {
      const int32_t i = j * blockDim.x + threadIdx.x;
      if (i >= packs) break;
      v[j] = LoadPack(x + row + i * kSize);
      if (residual != nullptr) {
        const Pack<T> r = LoadPack(residual + row + i * kSize);
#pragma unroll
        for (int e = 0; e < kSize; ++e) v[j].v[e] = FromFloat<T>(ToFloat(v[j].v[e]) + ToFloat(r.v[e]));
        StorePack(residual + row + i * kSize, v[j]);
      }
#pragma unroll
      for (int e = 0; e < kSize; ++e) sum += ToFloat(v[j].v[e]) * ToFloat(v[j].v[e]);
    }
    const float by = rsqrtf(BlockSum(sum, shared) / static_cast<float>(k) + eps);
#pragma unroll
    for (int j = 0; j < kPacks; ++j) {
      const int32_t i = j * blockDim.x + threadIdx.x;
      if (i >= packs) break;
#pragma unroll
      for (int e = 0; e < kSize; ++e) v[j].v[e] = FromFloat<T>(ToFloat(v[j].v[e]) * by * ToFloat(fetched.w[j].v[e]));
    }
  }
  __device__ __forceinline__ void Begin(float* shared) {
    const int64_t row = static_cast<int64_t>(blockIdx.x) * k;
    float sum = 0.0f;
    for (int32_t i = threadIdx.x; i < k; i += blockDim.x) {
      T v = x[row + i];
      if (residual != nullptr) {
        v = FromFloat<T>(ToFloat(v) + ToFloat(residual[row + i]));
        residual[row + i] = v;
      }
      sum += ToFloat(v) * ToFloat(v);
    }
    scale = rsqrtf(BlockSum(sum, shared) / static_cast<float>(k) + eps);
  }
  __device__ __forceinline__ float At(int32_t i) const {
    const T* from = (residual != nullptr ? residual : x) + static_cast<int64_t>(blockIdx.x) * k;
    return ToFloat(FromFloat<T>(ToFloat(from[i]) * scale * ToFloat(weight[i])));
  }
};

template <typename T>
struct SiluRow {
  const T* gate_up;
  int32_t k;

  static __device__ __forceinline__ T Of(T gate, T up) {
    const float g = ToFloat(gate);
    return FromFloat<T>(__fdividef(g, 1.0f + __expf(-g)) * ToFloat(up));
  }
  template <int kPacks>
  __device__ __forceinline__ NothingFetched Fetch(int32_t) const {
    return {};
  }
  template <int kPacks>
  __device__ __forceinline__ void Load(const NothingFetched&, Pack<T> (&v)[kPacks], int32_t packs, float*) const {
    constexpr int kSize = Pack<T>::kSize;
    const T* gate = gate_up + static_cast<int64_t>(blockIdx.x) * 2 * k;
    Pack<T> up[kPacks];
#pragma unroll
    for (int j = 0; j < kPacks; ++j) {
      const int32_t i = j * blockDim.x + threadIdx.x;
      if (i >= packs) break;
      v[j] = LoadPack(gate + i * kSize);
      up[j] = LoadPack(gate + k + i * kSize);
    }
#pragma unroll
    for (int j = 0; j < kPacks; ++j) {
      const int32_t i = j * blockDim.x + threadIdx.x;
      if (i >= packs) break;
#pragma unroll
      for (int e = 0; e < kSize; ++e) v[j].v[e] = Of(v[j].v[e], up[j].v[e]);
    }
  }
  __device__ __forceinline__ void Begin(float*) {}
  __device__ __forceinline__ float At(int32_t i) const {
    const T* gate = gate_up + static_cast<int64_t>(blockIdx.x) * 2 * k;
    return ToFloat(Of(gate[i], gate[k + i]));
  }
};

}  // namespace fastllm::cuda
