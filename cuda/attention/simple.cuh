// Attention in float32, for parity with the CPU arm rather than for speed: one warp per (query token, head), lanes over
// positions for the scores and over head_dim for the values. Any head_dim up to 256, any block size.
#pragma once

#include "cuda/common/reduce.cuh"
#include "cuda/common/types.cuh"
#include "ops/contract/attention.h"

namespace fastllm::cuda {

__device__ __forceinline__ int32_t SequenceOf(const int32_t* query_start, int32_t num_seqs, int32_t token) {
  int32_t lo = 0;
  int32_t hi = num_seqs;  // query_start[lo] <= token < query_start[hi]
  while (hi - lo > 1) {
    const int32_t mid = (lo + hi) / 2;
    if (query_start[mid] <= token) {
      lo = mid;
    } else {
      hi = mid;
    }
  }
  return lo;
}

inline constexpr int32_t kSimpleMaxHeadDim = 256;

// KV: float or fp8.
template <typename KV>
__global__ void __launch_bounds__(32) SimpleAttentionKernel(const ops::PagedAttentionParams p) {
  const int32_t token = blockIdx.x;
  const int32_t head = blockIdx.y;
  const int32_t lane = threadIdx.x;
  const int32_t dim = p.cache.head_dim;
  const int32_t kv_head = head / (p.num_q_heads / p.cache.num_kv_heads);
  const int32_t seq = SequenceOf(p.query_start, p.num_seqs, token);
  const int32_t end = p.seq_len[seq] - (p.query_start[seq + 1] - token) + 1;
  if (end <= 0) return;
  const float* q = static_cast<const float*>(p.q) + token * p.q_stride + static_cast<int64_t>(head) * dim;
  const auto row = [&](const void* cache, int32_t position) {
    const int64_t page = p.block_table[static_cast<int64_t>(seq) * p.max_blocks + position / p.cache.block_size];
    return static_cast<const KV*>(cache) +
           ((page * p.cache.num_kv_heads + kv_head) * p.cache.block_size + position % p.cache.block_size) * dim;
  };
  const int32_t begin = p.window > 0 ? max(0, end - p.window) : 0;
  float acc[kSimpleMaxHeadDim / 32] = {};
  float top = -INFINITY;
  float sum = 0.0f;
  for (int32_t first = begin; first < end; first += 32) {
    float score = -INFINITY;
    if (first + lane < end) {
      const KV* k = row(p.cache.k, first + lane);
      float dot = 0.0f;
      for (int32_t d = 0; d < dim; ++d) dot += q[d] * ToFloat(k[d]);
      score = dot * p.scale * p.cache.k_scale;
      if (p.logit_softcap > 0.0f) score = p.logit_softcap * tanhf(score / p.logit_softcap);
    }
    float new_top = fmaxf(top, score);
    for (int d = 16; d > 0; d /= 2) new_top = fmaxf(new_top, __shfl_xor_sync(0xffffffffu, new_top, d));
    const float alpha = expf(top - new_top);
    const float weight = expf(score - new_top);
    top = new_top;
    sum = sum * alpha + WarpSum(weight);
#pragma unroll
    for (int i = 0; i < kSimpleMaxHeadDim / 32; ++i) acc[i] *= alpha;
    for (int32_t j = 0; j < min(32, end - first); ++j) {
      const float w = __shfl_sync(0xffffffffu, weight, j);
      const KV* v = row(p.cache.v, first + j);
#pragma unroll
      for (int i = 0; i < kSimpleMaxHeadDim / 32; ++i) {
        if (i * 32 + lane < dim) acc[i] += w * ToFloat(v[i * 32 + lane]);
      }
    }
  }
  float* out = static_cast<float*>(p.out) + (static_cast<int64_t>(token) * p.num_q_heads + head) * dim;
#pragma unroll
  for (int i = 0; i < kSimpleMaxHeadDim / 32; ++i) {
    if (i * 32 + lane < dim) out[i * 32 + lane] = acc[i] / sum * p.cache.v_scale;
  }
}

}  // namespace fastllm::cuda
