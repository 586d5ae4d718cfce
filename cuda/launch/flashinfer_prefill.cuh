// Body of the FlashInfer prefill launchers (its Hopper kernel); included by one .cu per head_dim.
#pragma once

#include <flashinfer/attention/hopper/default_params.cuh>
#include <flashinfer/attention/hopper/prefill_sm90.cuh>
#include <flashinfer/attention/hopper/variants.cuh>

#include "cuda/launch/flashinfer.h"

namespace fastllm::cuda {

template <int kHeadDim>
cudaError_t RunFlashInferPrefill(const FlashInferBatch& b, const FlashInferPrefill& work, cudaStream_t stream) {
  using T = cutlass::bfloat16_t;
  const auto ints = [](const int32_t* p) { return const_cast<int32_t*>(p); };
  const auto data = [](const void* p) { return static_cast<T*>(const_cast<void*>(p)); };
  flashinfer::BatchPrefillPagedParams<T, T, T, int32_t> p = {};
  p.q_ptr = data(b.q);
  p.k_ptr = data(b.k);
  p.v_ptr = data(b.v);
  p.o_ptr = static_cast<T*>(b.out);
  p.qo_tile_indices = ints(work.tiles);
  p.qo_indptr = ints(work.q_start);
  p.kv_indptr = ints(work.pages);
  p.kv_indices = ints(b.block_table);
  p.qo_lens = ints(work.q_len);
  p.kv_lens = ints(work.kv_len);
  p.head_indices = ints(work.heads);
  p.work_indptr = ints(work.item_start);
  p.batch_indices = ints(work.seqs);
  p.additional_params.sm_scale = b.scale;
  p.q_stride_n = b.q_stride;
  p.q_stride_h = kHeadDim;
  p.o_stride_n = int64_t{b.num_q_heads} * kHeadDim;
  p.o_stride_h = kHeadDim;
  p.k_stride_n = p.v_stride_n = kHeadDim;  // within a page
  p.k_stride_h = p.v_stride_h = int64_t{b.page_size} * kHeadDim;
  p.k_page_stride = p.v_page_stride = p.k_stride_h * b.num_kv_heads;
  p.nnz_qo = b.num_tokens;
  p.num_qo_heads = b.num_q_heads;
  p.num_kv_heads = b.num_kv_heads;
  p.group_size = b.num_q_heads / b.num_kv_heads;
  p.page_size = b.page_size;
  p.window_left = -1;
  p.causal = true;
  return flashinfer::BatchPrefillWithPagedKVCacheDispatched<
      kHeadDim, kHeadDim, flashinfer::MaskMode::kCausal, /*LEFT_SLIDING_WINDOW=*/false,
      /*SAME_SCHEDULE_FOR_ALL_HEADS=*/false, flashinfer::StandardAttention>(p, /*enable_pdl=*/false, stream);
}

}  // namespace fastllm::cuda
