#pragma once

#include "ops/contract/common.h"

namespace fastllm::ops {

// How one step's attention is spread over the device: made on the host from the lengths, the same for every layer of
// the step, copied to the device once per step. The record is flat int32 and holds no pointer, so a captured run stays
// valid when another record of the same launch sizes is copied over it.
struct AttentionPlanParams {
  const int32_t* query_start = nullptr;  // host, [num_seqs + 1]
  const int32_t* seq_len = nullptr;      // host, [num_seqs]; a sequence of length 0 or of no query rows is left out
  int32_t num_seqs = 0;
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  DType dtype = DType::kBF16;
  DType kv_dtype = DType::kBF16;  // of the cache: kF8E4M3, or anything else for the same as dtype
  // Of PagedAttentionParams; layers with other values need a plan of their own.
  int32_t window = 0;
  float logit_softcap = 0.0f;
  // Launch sizes that a captured graph was made with: the record fills the rest with empty work. 0: as many as it
  // takes.
  int32_t decode_workers = 0;
  int32_t prefill_tiles = 0;
  int32_t* record = nullptr;  // host, out; at least record_ints of AttentionPlanBound
  int64_t record_capacity = 0;
  int32_t block_size = 0;  // of the cache
  int32_t max_blocks = 0;  // row stride of the block table
};

// What a plan came to. Copy `record_ints` int32 to the device and hand the rest to PagedAttentionParams.
struct AttentionPlanSize {
  int64_t record_ints = 0;
  int32_t decode_workers = 0;
  int32_t prefill_tiles = 0;
};
using AttentionPlanFn = AttentionPlanSize (*)(const AttentionPlanParams&);

// Upper bounds for a batch of at most num_seqs sequences and num_tokens query rows; for allocation, once.
struct AttentionBoundParams {
  int32_t num_seqs = 0;
  int32_t num_tokens = 0;
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  DType dtype = DType::kBF16;
  DType kv_dtype = DType::kBF16;
};
struct AttentionBound {
  int64_t record_ints = 0;
  int64_t workspace_bytes = 0;
  // The most that a plan for so many sequences asks for; what to capture graphs with. decode_workers is 0 where single
  // query rows are prefill's too; prefill_tiles is 0 where a backend does not capture steps with longer queries.
  int32_t decode_workers = 0;
  int32_t prefill_tiles = 0;
};
using AttentionBoundFn = AttentionBound (*)(const AttentionBoundParams&);

}  // namespace fastllm::ops
