// What the fused products (contract/fused_linear.h) need beside the operands, for the kernels of both sizes.
#pragma once

#include "cuda/common/types.cuh"

namespace fastllm::cuda {

// What the next product reads first. Blocks bring it to the L2 when all they read themselves is on its way, so that the
// memory has work while they add up, store, and the next kernel waits for them.
struct FusedNext {
  const char* data = nullptr;
  int64_t bytes = 0;  // a multiple of 16

  // Share `i` of `count`; one thread.
  __device__ __forceinline__ void Fetch(int32_t i, int32_t count) const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    const int64_t units = bytes / 16, begin = units * i / count;
    const auto size = static_cast<uint32_t>(units * (i + 1) / count - begin) * 16;
    if (size == 0) return;
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;\n" ::"l"(data + begin * 16), "r"(size) : "memory");
#endif
  }
};

// For the norm that follows a residual add; gain null: none does.
template <typename T>
struct FusedAdd {
  const T* gain = nullptr;   // [n]
  T* scaled = nullptr;       // [m, n]
  float* squares = nullptr;  // [m, parts]
};

// Rotation of q and k, k and v to the cache.
template <typename T>
struct FusedRope {
  const float* cos_sin = nullptr;
  const int32_t* positions = nullptr;
  const int64_t* slots = nullptr;
  T* k_cache = nullptr;
  T* v_cache = nullptr;
  int64_t num_slots = 0;
  int32_t q_heads = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t block_size = 1;

  // Where element `row` of q, k and v of a token goes, its partner half a head further on; null: nowhere. slot: the
  // token's.
  __device__ __forceinline__ T* Place(int32_t token, int64_t slot, int32_t row, T* q, int64_t q_stride) const {
    int32_t head = row / head_dim;
    const int32_t i = row - head * head_dim;
    if (head < q_heads) return q + token * q_stride + row;
    if (slot < 0 || slot >= num_slots) return nullptr;
    head -= q_heads;
    T* const cache = head < kv_heads ? k_cache : v_cache;
    if (head >= kv_heads) head -= kv_heads;
    const int64_t block = slot / block_size, place = slot - block * block_size;
    return cache + ((block * kv_heads + head) * block_size + place) * head_dim + i;
  }

  // Of element `row` at a position: half as many cosines as the head is long, then the sines. Null for v.
  __device__ __forceinline__ const float* Angle(int32_t position, int32_t row) const {
    const int32_t head = row / head_dim;
    if (head >= q_heads + kv_heads) return nullptr;
    return cos_sin + static_cast<int64_t>(position) * head_dim + (row - head * head_dim);
  }

  // Rotates the pair (x, y), x being element `row`.
  __device__ __forceinline__ void Rotate(int32_t position, int32_t row, float& x, float& y) const {
    if (const float* angle = Angle(position, row); angle != nullptr) {
      const float c = angle[0], s = angle[head_dim / 2], p = x;
      x = p * c - y * s;
      y = y * c + p * s;
    }
  }
};

}  // namespace fastllm::cuda
