// Rotary embedding of q and k, alone (contract/rope.h) or with the norms before it and the cache write after it
// (contract/rope_kv_write.h). One job is one head of one token; a job is done by a few neighbouring lanes.
#pragma once

#include "cuda/common/reduce.cuh"
#include "cuda/common/types.cuh"

namespace fastllm::cuda {

// slots == nullptr: q and k are rotated in place and v_heads is 0. Otherwise k and v go to the cache.
template <typename T>
struct RopeArgs {
  T* q = nullptr;
  T* k = nullptr;
  const T* v = nullptr;
  const T* q_weight = nullptr;
  const T* k_weight = nullptr;
  const float* cos_sin = nullptr;
  const int32_t* positions = nullptr;
  const int64_t* slots = nullptr;
  T* k_cache = nullptr;
  T* v_cache = nullptr;
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
};

template <typename T>
struct RopeJob {
  const T* from;
  T* to;  // null: nothing to do
  const T* weight;
  bool rotate;
};

template <typename T>
__device__ __forceinline__ RopeJob<T> MakeRopeJob(const RopeArgs<T>& a, int32_t token, int32_t head) {
  if (head < a.q_heads) {
    T* q = a.q + token * a.q_stride + static_cast<int64_t>(head) * a.head_dim;
    return {q, q, a.q_weight, true};
  }
  head -= a.q_heads;
  const bool is_k = head < a.kv_heads;
  if (!is_k) head -= a.kv_heads;
  const T* from = (is_k ? a.k + token * a.k_stride : a.v + token * a.v_stride) + static_cast<int64_t>(head) * a.head_dim;
  if (a.slots == nullptr) return {from, const_cast<T*>(from), a.k_weight, true};
  const int64_t slot = a.slots[token];
  if (slot < 0 || slot >= a.num_slots) return {from, nullptr, nullptr, false};
  const int64_t block = slot / a.block_size;
  const int64_t row = slot - block * a.block_size;
  T* cache = is_k ? a.k_cache : a.v_cache;
  T* to = cache + ((block * a.kv_heads + head) * a.block_size + row) * a.head_dim;
  return {from, to, is_k ? a.k_weight : nullptr, is_k};
}

// The whole head rotates (rotary_dim == head_dim) and is 16-byte aligned. Lane l of the kLanes of a job holds pack l of
// each half: with the NeoX pairing those are each other's partners; interleaved, a pack holds whole pairs.
template <typename T, int kLanes, bool kInterleaved>
__global__ void __launch_bounds__(128) RopeKernel(const RopeArgs<T> a) {
  constexpr int kSize = Pack<T>::kSize;
  const int32_t token = blockIdx.y;
  const int32_t head = (blockIdx.x * blockDim.x + threadIdx.x) / kLanes;
  const int32_t lane = threadIdx.x % kLanes;
  const int32_t half = a.head_dim / 2;
  const bool in_range = head < a.q_heads + a.kv_heads + a.v_heads;
  RopeJob<T> job{nullptr, nullptr, nullptr, false};
  if (in_range) job = MakeRopeJob(a, token, head);
  const bool active = job.to != nullptr && lane * kSize < half;
  Pack<T> x[2];
  float f[2][kSize];
  float sum = 0.0f;
  if (active) {
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      x[s] = LoadPack(job.from + s * half + lane * kSize);
#pragma unroll
      for (int e = 0; e < kSize; ++e) {
        f[s][e] = ToFloat(x[s].v[e]);
        sum += f[s][e] * f[s][e];
      }
    }
  }
  if (a.q_weight != nullptr || a.k_weight != nullptr) {
    const float scale = rsqrtf(WarpSum<kLanes>(sum) / static_cast<float>(a.head_dim) + a.eps);
    if (active && job.weight != nullptr) {
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        const Pack<T> w = LoadPack(job.weight + s * half + lane * kSize);
#pragma unroll
        for (int e = 0; e < kSize; ++e) f[s][e] *= scale * ToFloat(w.v[e]);
      }
    }
  }
  if (!active) return;
  if (job.rotate) {
    const float* cos = a.cos_sin + static_cast<int64_t>(a.positions[token]) * a.head_dim;
    const float* sin = cos + half;
    if constexpr (kInterleaved) {
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        const int32_t pair = (s * half + lane * kSize) / 2;
#pragma unroll
        for (int e = 0; e < kSize; e += 2) {
          const float c = cos[pair + e / 2], n = sin[pair + e / 2], p = f[s][e], q = f[s][e + 1];
          x[s].v[e] = FromFloat<T>(p * c - q * n);
          x[s].v[e + 1] = FromFloat<T>(q * c + p * n);
        }
      }
    } else {
      float c[kSize], n[kSize];
#pragma unroll
      for (int e = 0; e < kSize; e += 4) {
        *reinterpret_cast<float4*>(c + e) = *reinterpret_cast<const float4*>(cos + lane * kSize + e);
        *reinterpret_cast<float4*>(n + e) = *reinterpret_cast<const float4*>(sin + lane * kSize + e);
      }
#pragma unroll
      for (int e = 0; e < kSize; ++e) {
        x[0].v[e] = FromFloat<T>(f[0][e] * c[e] - f[1][e] * n[e]);
        x[1].v[e] = FromFloat<T>(f[1][e] * c[e] + f[0][e] * n[e]);
      }
    }
  }
#pragma unroll
  for (int s = 0; s < 2; ++s) StorePack(job.to + s * half + lane * kSize, x[s]);
}

// Any rotary_dim, head_dim and alignment: one warp per job, one pair or element at a time.
template <typename T>
__global__ void __launch_bounds__(128) RopeScalarKernel(const RopeArgs<T> a) {
  const int32_t token = blockIdx.y;
  const int32_t head = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  const int32_t lane = threadIdx.x % 32;
  if (head >= a.q_heads + a.kv_heads + a.v_heads) return;
  const RopeJob<T> job = MakeRopeJob(a, token, head);
  if (job.to == nullptr) return;
  float scale = 1.0f;
  if (job.weight != nullptr) {
    float sum = 0.0f;
    for (int32_t d = lane; d < a.head_dim; d += 32) sum += ToFloat(job.from[d]) * ToFloat(job.from[d]);
    scale = rsqrtf(WarpSum(sum) / static_cast<float>(a.head_dim) + a.eps);
  }
  const auto load = [&](int32_t d) {
    const float x = ToFloat(job.from[d]);
    return job.weight != nullptr ? x * scale * ToFloat(job.weight[d]) : x;
  };
  const int32_t rotary = job.rotate ? a.rotary_dim : 0;
  const int32_t half = rotary / 2;
  const float* cos = job.rotate ? a.cos_sin + static_cast<int64_t>(a.positions[token]) * rotary : nullptr;
  for (int32_t i = lane; i < half; i += 32) {
    const int32_t first = a.interleaved ? 2 * i : i;
    const int32_t second = a.interleaved ? 2 * i + 1 : i + half;
    const float p = load(first), q = load(second);
    job.to[first] = FromFloat<T>(p * cos[i] - q * cos[half + i]);
    job.to[second] = FromFloat<T>(q * cos[i] + p * cos[half + i]);
  }
  if (rotary == a.head_dim || (job.to == job.from && job.weight == nullptr)) return;
  for (int32_t d = rotary + lane; d < a.head_dim; d += 32) job.to[d] = FromFloat<T>(load(d));
}

}  // namespace fastllm::cuda
