// Body of the FlashInfer decode launchers; included by one .cu per head_dim.
#pragma once

#include <flashinfer/attention/default_prefill_params.cuh>
#include <flashinfer/attention/prefill.cuh>
#include <flashinfer/attention/variants.cuh>

#include "cuda/launch/flashinfer.h"

namespace fastllm::cuda {

template <int kHeadDim>
cudaError_t RunFlashInferDecode(const FlashInferBatch& b, const FlashInferDecode& d, cudaStream_t stream) {
  using T = __nv_bfloat16;
  using Params = flashinfer::BatchPrefillPagedParams<T, T, T, int32_t>;
  using Variant = flashinfer::DefaultAttention</*use_custom_mask=*/false, /*use_sliding_window=*/false,
                                               /*use_logits_soft_cap=*/false, /*use_alibi=*/false>;
  const auto ints = [](const int32_t* p) { return const_cast<int32_t*>(p); };
  const auto data = [](const void* p) { return static_cast<T*>(const_cast<void*>(p)); };
  const flashinfer::paged_kv_t<T, int32_t> pages(b.num_kv_heads, b.page_size, kHeadDim, b.num_seqs,
                                                 flashinfer::QKVLayout::kHND, data(b.k), data(b.v), ints(b.block_table),
                                                 ints(b.page_start), ints(b.last_page));
  Params p(data(b.q), pages, /*maybe_custom_mask=*/nullptr, ints(b.query_start), /*maybe_mask_indptr=*/nullptr,
           /*maybe_q_rope_offset=*/nullptr, static_cast<T*>(b.out), /*lse=*/nullptr, /*maybe_alibi_slopes=*/nullptr,
           b.num_q_heads, static_cast<int32_t>(b.q_stride), kHeadDim, /*window_left=*/-1, /*logits_soft_cap=*/0.0f,
           b.scale, /*rope_scale=*/1.0f, /*rope_theta=*/1.0f);
  p.request_indices = ints(d.requests);
  p.qo_tile_indices = ints(d.q_tiles);
  p.kv_tile_indices = ints(d.kv_tiles);
  p.merge_indptr = ints(d.merge_start);
  p.o_indptr = ints(d.out_start);
  p.block_valid_mask = const_cast<bool*>(d.valid);
  p.kv_chunk_size_ptr = ints(d.chunk);
  p.max_total_num_rows = b.num_tokens;
  p.total_num_rows = reinterpret_cast<uint32_t*>(ints(d.rows));
  p.padded_batch_size = d.works;
  // One query row sees every position: no mask.
  return flashinfer::BatchPrefillWithPagedKVCacheDispatched<
      /*CTA_TILE_Q=*/16, kHeadDim, kHeadDim, flashinfer::PosEncodingMode::kNone, /*USE_FP16_QK_REDUCTION=*/false,
      flashinfer::MaskMode::kNone, Variant>(p, static_cast<T*>(d.partial_out), d.partial_lse, /*enable_pdl=*/false,
                                            stream);
}

}  // namespace fastllm::cuda
