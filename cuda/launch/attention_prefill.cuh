// Body of the prefill launchers; included by one .cu per dtype.
#pragma once

#include <algorithm>
#include <string>

#include "core/base/check.h"
#include "cuda/attention/prefill.cuh"
#include "cuda/attention/prefill_hopper.cuh"
#include "cuda/launch/attention.h"
#include "cuda/launch/tensor_map.h"

namespace fastllm::cuda {

template <typename T>
PrefillArgs<T> MakePrefillArgs(const ops::PagedAttentionParams& p, const AttentionShape& s) {
  PrefillArgs<T> a;
  a.q = static_cast<const T*>(p.q);
  a.out = static_cast<T*>(p.out);
  a.k = p.cache.k;
  a.v = p.cache.v;
  a.block_table = p.block_table;
  a.tiles = reinterpret_cast<const PrefillTile*>(p.plan + kPlanHeader +
                                                 int64_t{p.decode_workers} * (sizeof(DecodeWorker) / 4));
  a.q_stride = p.q_stride;
  a.out_stride = int64_t{p.num_q_heads} * s.head_dim;
  a.max_blocks = p.max_blocks;
  a.kv_heads = s.kv_heads;
  a.group = s.group;
  a.group_magic = MagicOf(s.group);
  a.block_shift = s.block_shift;
  SetVariant(a, p);
  return a;
}

template <typename T, int kHeadDim>
HopperArgs<T> MakeHopperArgs(const ops::PagedAttentionParams& p, const AttentionShape& s, int32_t workers) {
  using Shape = HopperShape<kHeadDim>;
  const WorkspaceBytes w = PrefillWorkspace(workers, kHeadDim);
  FASTLLM_CHECK(w.total() <= p.workspace_bytes, "paged_attention: the workspace is " +
                                                    std::to_string(p.workspace_bytes) + " bytes, " +
                                                    std::to_string(w.total()) + " are needed");
  const int64_t rows = int64_t{p.cache.num_blocks} * s.kv_heads * p.cache.block_size;
  FASTLLM_CHECK(rows / 8 < INT32_MAX, "paged_attention: a cache of " + std::to_string(rows) + " rows, the limit is " +
                                          std::to_string(int64_t{INT32_MAX} * 8));
  RowBoxes boxes{p.cache.k, rows, kHeadDim, Shape::kAtom, std::min(p.cache.block_size, Shape::kCols)};
  auto* bytes = static_cast<char*>(p.workspace);
  HopperArgs<T> args;
  args.k_map = MakeRowBoxes(boxes, "paged_attention");
  boxes.data = p.cache.v;
  args.v_map = MakeRowBoxes(boxes, "paged_attention");
  args.a = MakePrefillArgs<T>(p, s);
  args.items = p.prefill_tiles * s.kv_heads;
  args.used_tiles = p.plan + kPlanUsedTiles;
  args.cache_groups = static_cast<int32_t>(rows / 8);
  args.counters = reinterpret_cast<uint32_t*>(bytes);
  args.part_sums = reinterpret_cast<float2*>(bytes + w.counters);
  args.part_out = reinterpret_cast<float*>(bytes + w.counters + w.sums);
  return args;
}

template <typename T, typename KV, int kHeadDim, bool kCapped>
void LaunchPlainPrefill(const ops::PagedAttentionParams& p, const AttentionShape& s, cudaStream_t stream) {
  using Shape = PrefillShape<kHeadDim>;
  const auto kernel = &PrefillKernel<T, KV, kHeadDim, kCapped>;
  AllowSharedMemory(reinterpret_cast<const void*>(kernel), Shape::kSharedBytes, "paged_attention");
  kernel<<<p.prefill_tiles * s.kv_heads, Shape::kThreads, Shape::kSharedBytes, stream>>>(MakePrefillArgs<T>(p, s));
}

template <typename T, int kHeadDim, bool kCapped>
void LaunchPrefillVariant(const ops::PagedAttentionParams& p, const AttentionShape& s, cudaStream_t stream) {
  if (PrefillOnHopper()) {
    using Shape = HopperShape<kHeadDim>;
    const int32_t workers = PlanDeviceFor(kHeadDim, p.cache.dtype).prefill_workers;
    const HopperArgs<T> args = MakeHopperArgs<T, kHeadDim>(p, s, workers);
    const auto kernel = &HopperPrefillKernel<T, kHeadDim, kCapped>;
    AllowSharedMemory(reinterpret_cast<const void*>(kernel), Shape::kSharedBytes, "paged_attention");
    kernel<<<std::min(args.items, workers), Shape::kThreads, Shape::kSharedBytes, stream>>>(args);
    return;
  }
  LaunchPlainPrefill<T, T, kHeadDim, kCapped>(p, s, stream);
}

template <typename T, int kHeadDim>
void LaunchPrefill(const ops::PagedAttentionParams& p, const AttentionShape& s, cudaStream_t stream) {
  if constexpr (kHasSoftcap<T, kHeadDim>) {
    if (p.logit_softcap > 0.0f) return LaunchPrefillVariant<T, kHeadDim, true>(p, s, stream);
  }
  LaunchPrefillVariant<T, kHeadDim, false>(p, s, stream);
}

template <typename T, int kHeadDim>
void LaunchPrefillFp8(const ops::PagedAttentionParams& p, const AttentionShape& s, cudaStream_t stream) {
  if constexpr (kHasSoftcap<T, kHeadDim>) {
    if (p.logit_softcap > 0.0f) return LaunchPlainPrefill<T, fp8, kHeadDim, true>(p, s, stream);
  }
  LaunchPlainPrefill<T, fp8, kHeadDim, false>(p, s, stream);
}

}  // namespace fastllm::cuda
