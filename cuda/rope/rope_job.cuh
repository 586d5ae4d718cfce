// Arguments of the rope kernels (rope.cuh), and what they do with one head of one token.
#pragma once

#include "cuda/common/types.cuh"

namespace fastllm::cuda {

// slots == nullptr: q and k are rotated in place and v_heads is 0. Otherwise k and v go to the cache.
// KV: the element of the cache, T or fp8.
template <typename T, typename KV = T>
struct RopeArgs {
  T* q = nullptr;
  T* k = nullptr;
  const T* v = nullptr;
  const T* q_weight = nullptr;
  const T* k_weight = nullptr;
  const float* cos_sin = nullptr;
  const int32_t* positions = nullptr;
  const int64_t* slots = nullptr;
  KV* k_cache = nullptr;
  KV* v_cache = nullptr;
  float k_inverse = 1.0f;  // fp8: 1 / k_scale
  float v_inverse = 1.0f;
  int64_t q_stride = 0;
  int64_t k_stride = 0;
  int64_t v_stride = 0;
  int64_t num_slots = 0;  // a slot past them is skipped: device code cannot refuse
  int32_t q_heads = 0;
  int32_t kv_heads = 0;
  int32_t v_heads = 0;
  int32_t head_dim = 0;
  int32_t rotary_dim = 0;
  int32_t block_size = 1;
  float eps = 0.0f;
  bool interleaved = false;
  bool early = false;  // the next kernel may start while this one runs
};

// to and codes null: nothing to do.
template <typename T>
struct RopeJob {
  const T* from;
  T* to;
  const T* weight;
  bool rotate;
  fp8* codes;  // in place of `to`
  float inverse;

  __device__ __forceinline__ bool Idle() const { return to == nullptr && codes == nullptr; }
  __device__ __forceinline__ void Put(int32_t d, float x) const {
    const T rounded = FromFloat<T>(x);
    if (codes == nullptr) {
      to[d] = rounded;
    } else {
      codes[d].__x = static_cast<uint8_t>(PackTwoFp8(ToFloat(rounded) * inverse, 0.0f));
    }
  }
  // A whole pack.
  __device__ __forceinline__ void Put(int32_t d, const Pack<T>& x) const {
    if (codes == nullptr) return StorePack(to + d, x);
#pragma unroll
    for (int e = 0; e < Pack<T>::kSize; e += 4) {
      const uint32_t low = PackTwoFp8(ToFloat(x.v[e]) * inverse, ToFloat(x.v[e + 1]) * inverse);
      const uint32_t high = PackTwoFp8(ToFloat(x.v[e + 2]) * inverse, ToFloat(x.v[e + 3]) * inverse);
      *reinterpret_cast<uint32_t*>(codes + d + e) = low | high << 16;
    }
  }
};

template <typename T, typename KV>
__device__ __forceinline__ RopeJob<T> MakeRopeJob(const RopeArgs<T, KV>& a, int32_t token, int32_t head) {
  if (head < a.q_heads) {
    T* q = a.q + token * a.q_stride + static_cast<int64_t>(head) * a.head_dim;
    return {q, q, a.q_weight, true, nullptr, 1.0f};
  }
  head -= a.q_heads;
  const bool is_k = head < a.kv_heads;
  if (!is_k) head -= a.kv_heads;
  const T* from =
      (is_k ? a.k + token * a.k_stride : a.v + token * a.v_stride) + static_cast<int64_t>(head) * a.head_dim;
  if (a.slots == nullptr) return {from, const_cast<T*>(from), a.k_weight, true, nullptr, 1.0f};
  const int64_t slot = a.slots[token];
  if (slot < 0 || slot >= a.num_slots) return {from, nullptr, nullptr, false, nullptr, 1.0f};
  const int64_t block = slot / a.block_size;
  const int64_t row = slot - block * a.block_size;
  KV* cache = is_k ? a.k_cache : a.v_cache;
  KV* to = cache + ((block * a.kv_heads + head) * a.block_size + row) * a.head_dim;
  const T* weight = is_k ? a.k_weight : nullptr;
  if constexpr (sizeof(KV) == 1) {
    return {from, nullptr, weight, is_k, to, is_k ? a.k_inverse : a.v_inverse};
  } else {
    return {from, to, weight, is_k, nullptr, 1.0f};
  }
}

}  // namespace fastllm::cuda
