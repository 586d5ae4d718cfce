// Body of the decode launchers; included by one .cu per dtype.
#pragma once

#include <string>

#include "core/base/check.h"
#include "cuda/attention/decode.cuh"
#include "cuda/launch/attention.h"
#include "cuda/launch/overlap.cuh"

namespace fastllm::cuda {

template <typename T, typename KV>
DecodeArgs<T, KV> MakeDecodeArgs(const ops::PagedAttentionParams& p, const AttentionShape& s) {
  const WorkspaceBytes w = DecodeWorkspace(p.decode_workers, s.group, s.head_dim);
  const int64_t offset = PrefillWorkspace(PlanDeviceFor(s.head_dim, p.cache.dtype).prefill_workers, s.head_dim).total();
  FASTLLM_CHECK(offset + w.total() <= p.workspace_bytes, "paged_attention: the workspace is " +
                                                             std::to_string(p.workspace_bytes) + " bytes, " +
                                                             std::to_string(offset + w.total()) + " are needed");
  auto* bytes = static_cast<char*>(p.workspace) + offset;
  const int32_t* record = p.plan + kPlanHeader;
  const int64_t worker_ints = int64_t{p.decode_workers} * (sizeof(DecodeWorker) / 4);
  const int64_t tile_ints = int64_t{p.prefill_tiles} * (sizeof(PrefillTile) / 4);
  DecodeArgs<T, KV> a;
  a.q = static_cast<const T*>(p.q);
  a.out = static_cast<T*>(p.out);
  a.k = static_cast<const KV*>(p.cache.k);
  a.v = static_cast<const KV*>(p.cache.v);
  a.block_table = p.block_table;
  a.workers = reinterpret_cast<const DecodeWorker*>(record);
  a.decodes = reinterpret_cast<const DecodeSequence*>(record + worker_ints + tile_ints);
  a.counters = reinterpret_cast<uint32_t*>(bytes);
  a.part_sums = reinterpret_cast<float2*>(bytes + w.counters);
  a.part_out = reinterpret_cast<float*>(bytes + w.counters + w.sums);
  a.q_stride = p.q_stride;
  a.out_stride = int64_t{p.num_q_heads} * s.head_dim;
  a.max_blocks = p.max_blocks;
  a.kv_heads = s.kv_heads;
  a.group = s.group;
  a.block_shift = s.block_shift;
  SetVariant(a, p);
  return a;
}

template <typename T, typename KV, int kHeadDim, int kHeadTiles>
void LaunchDecodeTiles(const ops::PagedAttentionParams& p, const AttentionShape& s, cudaStream_t stream) {
  constexpr int kStages = (kHeadDim <= 64 ? 5 : 3) * (sizeof(KV) == 1 ? 2 : 1);
  const auto kernel = &DecodeKernel<T, KV, kHeadDim, kHeadTiles, kStages>;
  const int32_t bytes = DecodeShape<kHeadDim, kStages, sizeof(KV)>::SharedBytes(s.group);
  // Cheap (no driver call beyond a table look-up) and right on every device of the process.
  AllowSharedMemory(reinterpret_cast<const void*>(kernel), bytes, "paged_attention");
  const bool early = p.num_tokens >= kOverlappedRows;
  if (early) {
    LaunchOverlapped(kernel, dim3(p.decode_workers), kDecodeWarps * 32, bytes, stream, "paged_attention",
                     MakeDecodeArgs<T, KV>(p, s), early);
  } else {
    kernel<<<p.decode_workers, kDecodeWarps * 32, bytes, stream>>>(MakeDecodeArgs<T, KV>(p, s), early);
  }
}

template <typename T, typename KV, int kHeadDim>
void LaunchDecodeOf(const ops::PagedAttentionParams& p, const AttentionShape& s, cudaStream_t stream) {
  if (s.group <= 8) {
    LaunchDecodeTiles<T, KV, kHeadDim, 1>(p, s, stream);
    return;
  }
  if constexpr (MaxDecodeGroup(kHeadDim) > 8) {
    LaunchDecodeTiles<T, KV, kHeadDim, 2>(p, s, stream);
  } else {
    FASTLLM_CHECK(false, "paged_attention: " + std::to_string(s.group) + " query heads per KV head with head_dim " +
                             std::to_string(kHeadDim) + "; decode has up to 8");
  }
}

template <typename T, int kHeadDim>
void LaunchDecode(const ops::PagedAttentionParams& p, const AttentionShape& s, cudaStream_t stream) {
  LaunchDecodeOf<T, T, kHeadDim>(p, s, stream);
}
template <typename T, int kHeadDim>
void LaunchDecodeFp8(const ops::PagedAttentionParams& p, const AttentionShape& s, cudaStream_t stream) {
  LaunchDecodeOf<T, fp8, kHeadDim>(p, s, stream);
}

}  // namespace fastllm::cuda
