// K and V of each token into its cache slot (contract/kv_cache.h).
#pragma once

#include <cstdint>

#include "cuda/common/types.cuh"

namespace fastllm::cuda {

// Sizes and strides in Units, what one thread moves. blockIdx.y is the token; slots outside the cache are skipped.
template <typename Unit>
struct KvWriteArgs {
  Unit* k_cache = nullptr;
  Unit* v_cache = nullptr;
  const Unit* k = nullptr;
  const Unit* v = nullptr;
  const int64_t* slots = nullptr;
  int64_t k_stride = 0;
  int64_t v_stride = 0;
  int64_t num_slots = 0;
  int32_t kv_heads = 0;
  int32_t block_size = 1;
  int32_t head_units = 0;
};

template <typename Unit>
__global__ void __launch_bounds__(256) KvWriteKernel(const KvWriteArgs<Unit> a) {
  const int64_t token = blockIdx.y;
  const int64_t slot = a.slots[token];
  if (slot < 0 || slot >= a.num_slots) return;
  const int64_t block = slot / a.block_size;
  const int64_t row = slot - block * a.block_size;
  const int32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= a.kv_heads * a.head_units) return;
  const int32_t head = i / a.head_units;
  const int64_t to = ((block * a.kv_heads + head) * a.block_size + row) * a.head_units + i % a.head_units;
  const Unit k = a.k[token * a.k_stride + i];
  const Unit v = a.v[token * a.v_stride + i];
  a.k_cache[to] = k;
  a.v_cache[to] = v;
}

// Into a cache of fp8: sizes in elements, one thread each.
template <typename T>
struct KvWriteFp8Args {
  fp8* k_cache = nullptr;
  fp8* v_cache = nullptr;
  const T* k = nullptr;
  const T* v = nullptr;
  const int64_t* slots = nullptr;
  int64_t k_stride = 0;
  int64_t v_stride = 0;
  int64_t num_slots = 0;
  float k_inverse = 1.0f;
  float v_inverse = 1.0f;
  int32_t kv_heads = 0;
  int32_t block_size = 1;
  int32_t head_dim = 0;
};

template <typename T>
__global__ void __launch_bounds__(256) KvWriteFp8Kernel(const KvWriteFp8Args<T> a) {
  const int64_t token = blockIdx.y;
  const int64_t slot = a.slots[token];
  if (slot < 0 || slot >= a.num_slots) return;
  const int64_t block = slot / a.block_size;
  const int64_t row = slot - block * a.block_size;
  const int32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= a.kv_heads * a.head_dim) return;
  const int32_t head = i / a.head_dim;
  const int64_t to = ((block * a.kv_heads + head) * a.block_size + row) * a.head_dim + i % a.head_dim;
  const float k = ToFloat(a.k[token * a.k_stride + i]) * a.k_inverse;
  const float v = ToFloat(a.v[token * a.v_stride + i]) * a.v_inverse;
  const uint16_t codes = PackTwoFp8(k, v);
  a.k_cache[to].__x = static_cast<uint8_t>(codes);
  a.v_cache[to].__x = static_cast<uint8_t>(codes >> 8);
}

}  // namespace fastllm::cuda
