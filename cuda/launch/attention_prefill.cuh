// Body of the prefill launchers; included by one .cu per dtype.
#pragma once

#include "cuda/attention/prefill.cuh"
#include "cuda/attention/prefill_hopper.cuh"
#include "cuda/launch/attention.h"

namespace fastllm::cuda {

// Whether this build holds code for sm_90a (cuda/CMakeLists.txt), where the warpgroup instructions are.
#ifdef FASTLLM_SM90A
inline constexpr bool kHasHopperCode = true;
#else
inline constexpr bool kHasHopperCode = false;
#endif

template <typename T>
PrefillArgs<T> MakePrefillArgs(const ops::PagedAttentionParams& p, const AttentionShape& s) {
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
  a.out_stride = int64_t{p.num_q_heads} * s.head_dim;
  a.max_blocks = p.max_blocks;
  a.kv_heads = s.kv_heads;
  a.group = s.group;
  a.block_shift = s.block_shift;
  a.scale_log2 = p.scale * 1.44269504f;
  return a;
}

template <typename T, int kHeadDim>
void LaunchPrefill(const ops::PagedAttentionParams& p, const AttentionShape& s, cudaStream_t stream) {
  const PrefillArgs<T> a = MakePrefillArgs<T>(p, s);
  const int32_t blocks = p.prefill_tiles * s.kv_heads;
  if constexpr (kHeadDim == 64 || kHeadDim == 128) {
    if (kHasHopperCode && CurrentDevice().compute_capability == 90) {
      using Shape = HopperShape<kHeadDim>;
      const auto kernel = &HopperPrefillKernel<T, kHeadDim>;
      AllowSharedMemory(reinterpret_cast<const void*>(kernel), Shape::kSharedBytes, "paged_attention");
      kernel<<<blocks, Shape::kThreads, Shape::kSharedBytes, stream>>>(a);
      return;
    }
  }
  using Shape = PrefillShape<kHeadDim>;
  const auto kernel = &PrefillKernel<T, kHeadDim>;
  AllowSharedMemory(reinterpret_cast<const void*>(kernel), Shape::kSharedBytes, "paged_attention");
  kernel<<<blocks, Shape::kThreads, Shape::kSharedBytes, stream>>>(a);
}

}  // namespace fastllm::cuda
