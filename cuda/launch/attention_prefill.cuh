// Body of the prefill launchers; included by one .cu per dtype.
#pragma once

#include "cuda/attention/prefill.cuh"
#include "cuda/launch/attention.h"

namespace fastllm::cuda {

template <typename T, int kHeadDim>
void LaunchPrefill(const ops::PagedAttentionParams& p, const AttentionShape& s, cudaStream_t stream) {
  using Shape = PrefillShape<kHeadDim>;
  PrefillArgs<T> a;
  a.q = static_cast<const T*>(p.q);
  a.out = static_cast<T*>(p.out);
  a.k = static_cast<const T*>(p.cache.k);
  a.v = static_cast<const T*>(p.cache.v);
  a.block_table = p.block_table;
  a.query_start = p.query_start;
  a.tiles = reinterpret_cast<const PrefillTile*>(p.plan + kPlanHeader +
                                                 int64_t{p.decode_workers} * (sizeof(DecodeWorker) / 4));
  a.q_stride = p.q_stride;
  a.out_stride = int64_t{p.num_q_heads} * kHeadDim;
  a.max_blocks = p.max_blocks;
  a.kv_heads = s.kv_heads;
  a.group = s.group;
  a.block_shift = s.block_shift;
  a.scale_log2 = p.scale * 1.44269504f;
  const auto kernel = &PrefillKernel<T, kHeadDim>;
  AllowSharedMemory(reinterpret_cast<const void*>(kernel), Shape::kSharedBytes, "paged_attention");
  kernel<<<p.prefill_tiles * s.kv_heads, Shape::kThreads, Shape::kSharedBytes, stream>>>(a);
}

}  // namespace fastllm::cuda
