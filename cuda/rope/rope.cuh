// Rotary embedding of q and k, alone (contract/rope.h) or with the norms before it and the cache write after it
// (contract/rope_kv_write.h). One job is one head of one token; a job is done by a few neighbouring lanes.
#pragma once

#include "cuda/common/launch_order.cuh"
#include "cuda/common/reduce.cuh"
#include "cuda/rope/rope_job.cuh"

namespace fastllm::cuda {

// The two packs of one lane: pack `lane` of each half of a head, as read and in float32.
template <typename T>
struct RopeHalves {
  Pack<T> x[2];
  float f[2][Pack<T>::kSize];
};

template <typename T, bool kInterleaved>
__device__ __forceinline__ void Rotate(RopeHalves<T>& h, const float* cos_sin, int32_t half, int32_t lane) {
  constexpr int kSize = Pack<T>::kSize;
  if constexpr (kInterleaved) {
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      const int32_t pair = (s * half + lane * kSize) / 2;
#pragma unroll
      for (int e = 0; e < kSize; e += 2) {
        const float c = cos_sin[pair + e / 2], n = cos_sin[half + pair + e / 2], p = h.f[s][e], q = h.f[s][e + 1];
        h.x[s].v[e] = FromFloat<T>(p * c - q * n);
        h.x[s].v[e + 1] = FromFloat<T>(q * c + p * n);
      }
    }
  } else {
    float c[kSize], n[kSize];
#pragma unroll
    for (int e = 0; e < kSize; e += 4) {
      *reinterpret_cast<float4*>(c + e) = *reinterpret_cast<const float4*>(cos_sin + lane * kSize + e);
      *reinterpret_cast<float4*>(n + e) = *reinterpret_cast<const float4*>(cos_sin + half + lane * kSize + e);
    }
#pragma unroll
    for (int e = 0; e < kSize; ++e) {
      h.x[0].v[e] = FromFloat<T>(h.f[0][e] * c[e] - h.f[1][e] * n[e]);
      h.x[1].v[e] = FromFloat<T>(h.f[1][e] * c[e] + h.f[0][e] * n[e]);
    }
  }
}

// The whole head rotates (rotary_dim == head_dim) and is 16-byte aligned. Lane l of the kLanes of a job holds pack l of
// each half: with the NeoX pairing those are each other's partners; interleaved, a pack holds whole pairs. Each group
// of lanes does kJobs neighbouring heads, so that more loads are in flight.
template <typename T, typename KV, int kLanes, int kJobs, bool kInterleaved>
__global__ void __launch_bounds__(128) RopeKernel(const RopeArgs<T, KV> a) {
  constexpr int kSize = Pack<T>::kSize;
  if (a.early) AllowNext();
  WaitForPrevious();
  const int32_t token = blockIdx.y;
  const int32_t head = (blockIdx.x * blockDim.x + threadIdx.x) / kLanes * kJobs;
  const int32_t lane = threadIdx.x % kLanes;
  const int32_t half = a.head_dim / 2;
  const int32_t at = lane * kSize;
  RopeJob<T> job[kJobs];
  RopeHalves<T> h[kJobs];
#pragma unroll
  for (int j = 0; j < kJobs; ++j) {
    job[j] = {nullptr, nullptr, nullptr, false, nullptr, 1.0f};
    if (head + j < a.q_heads + a.kv_heads + a.v_heads && at < half) job[j] = MakeRopeJob(a, token, head + j);
    if (job[j].Idle()) continue;
#pragma unroll
    for (int s = 0; s < 2; ++s) h[j].x[s] = LoadPack(job[j].from + s * half + at);
  }
  const float* cos_sin = a.cos_sin + static_cast<int64_t>(a.positions[token]) * a.head_dim;
#pragma unroll
  for (int j = 0; j < kJobs; ++j) {
    float sum = 0.0f;
#pragma unroll
    for (int s = 0; s < 2; ++s) {
#pragma unroll
      for (int e = 0; e < kSize; ++e) {
        h[j].f[s][e] = !job[j].Idle() ? ToFloat(h[j].x[s].v[e]) : 0.0f;
        sum += h[j].f[s][e] * h[j].f[s][e];
      }
    }
    if (a.q_weight != nullptr || a.k_weight != nullptr) {
      const float scale = rsqrtf(WarpSum<kLanes>(sum) / static_cast<float>(a.head_dim) + a.eps);
#pragma unroll
      for (int s = 0; s < 2 && job[j].weight != nullptr; ++s) {
        const Pack<T> w = LoadPack(job[j].weight + s * half + at);
#pragma unroll
        for (int e = 0; e < kSize; ++e) h[j].f[s][e] *= scale * ToFloat(w.v[e]);
      }
    }
    if (job[j].Idle()) continue;
    if (job[j].rotate) Rotate<T, kInterleaved>(h[j], cos_sin, half, lane);
#pragma unroll
    for (int s = 0; s < 2; ++s) job[j].Put(s * half + at, h[j].x[s]);
  }
}

// Any rotary_dim, head_dim and alignment: one warp per job, one pair or element at a time.
template <typename T, typename KV>
__global__ void __launch_bounds__(128) RopeScalarKernel(const RopeArgs<T, KV> a) {
  const int32_t token = blockIdx.y;
  const int32_t head = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  const int32_t lane = threadIdx.x % 32;
  if (head >= a.q_heads + a.kv_heads + a.v_heads) return;
  const RopeJob<T> job = MakeRopeJob(a, token, head);
  if (job.Idle()) return;
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
    job.Put(first, p * cos[i] - q * cos[half + i]);
    job.Put(second, q * cos[i] + p * cos[half + i]);
  }
  if (rotary == a.head_dim || (job.to == job.from && job.weight == nullptr)) return;
  for (int32_t d = rotary + lane; d < a.head_dim; d += 32) job.Put(d, load(d));
}

}  // namespace fastllm::cuda
