// The plan record of FlashInfer's kernels (contract/attention_plan.h): what its own planners put into device buffers,
// written in one piece so that it travels as ours does. No CUDA and nothing of FlashInfer here.
//
// Sequences of one query row go to its FlashAttention-2 template with row tiles of 16 ("tensor-core decode"), their
// positions cut into chunks where there are too few of them to fill the machine; all others to its Hopper kernel, one
// query head per tile, items dealt to the multiprocessors beforehand.
#pragma once

#include <cstdint>

#include "ops/contract/attention_plan.h"

namespace fastllm::cuda {

inline constexpr int32_t kFlashInferDecodeRows = 16;
// Query rows of a tile of its Hopper kernel.
inline constexpr int32_t FlashInferPrefillRows(int32_t head_dim) { return head_dim == 64 ? 192 : 128; }

// AttentionPlanSize::decode_workers with this bit: positions are cut, and parts are merged.
inline constexpr int32_t kFlashInferSplit = 1 << 30;

// Offsets in the record, in ints.
struct FlashInferLayout {
  int64_t requests, q_tiles, kv_tiles, valid;                 // of decode, [works]; valid: bytes
  int64_t out_start, merge_start, chunk, rows;                // [seqs + 1], [tokens + 1], 1, 1
  int64_t page_start, last_page;                              // [seqs + 1], [seqs]
  int64_t item_start;                                         // of prefill, [multiprocessors + 1]
  int64_t heads, tiles, q_start, pages, q_len, kv_len, seqs;  // [items]
  int64_t total;

  static FlashInferLayout Of(int32_t works, int32_t items, int32_t num_seqs, int64_t num_tokens,
                             int32_t multiprocessors);
};

// Writes the record; prefill_tiles of the result counts items (tile, query head). with_prefill: false leaves longer
// queries out. Throws InternalError where it does not fit, and of windows, soft caps and captured prefill steps.
ops::AttentionPlanSize MakeFlashInferPlan(const ops::AttentionPlanParams& p, int32_t multiprocessors,
                                          bool with_prefill = true);

ops::AttentionBound FlashInferBound(const ops::AttentionBoundParams& p, int32_t multiprocessors,
                                    bool with_prefill = true);

// Rows of partial outputs, [num_q_heads, head_dim] each, that decode may leave.
int64_t FlashInferPartialRows(int32_t num_seqs, int32_t num_kv_heads, int32_t multiprocessors);

}  // namespace fastllm::cuda
