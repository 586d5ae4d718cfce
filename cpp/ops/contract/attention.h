#pragma once

#include "ops/contract/kv_cache.h"

namespace fastllm::ops {

// Causal attention of a ragged batch over the paged cache; prefill chunks, decodes and mixes of them in one call.
// Row r of sequence s (0 <= r < query_start[s+1] - query_start[s]) sits at position
//   p = seq_len[s] - (query_start[s+1] - query_start[s]) + r
// and sees positions 0..p, whose K and V are already in the cache (its own included). Query head h reads KV head
// h / (num_q_heads / num_kv_heads) (GQA). out = softmax(scale * q k^T) v, softmax in float32.
//
// Variants, which an implementation may lack (Feature bits of the op table):
// - window > 0: the row sees positions max(0, p - window + 1)..p. Blocks that no row of the sequence sees are not read:
//   their entries of the block table may be anything, and K and V there as well.
// - logit_softcap > 0: a score x = scale * q k becomes logit_softcap * tanh(x / logit_softcap), before the mask.
//
// Backends that spread the work by a plan (CUDA) read the members from `plan` on; see attention_plan.h. The others
// ignore them. Rows of a sequence that the plan leaves out are not written (the FlashInfer backend may zero those that
// lie before the last row of another).
struct PagedAttentionParams {
  KvCacheView cache;
  void* out = nullptr;                   // [num_tokens, num_q_heads, head_dim] contiguous
  const void* q = nullptr;               // [num_tokens, num_q_heads, head_dim], token stride q_stride
  const int32_t* query_start = nullptr;  // [num_seqs + 1], query_start[0] = 0, last = num_tokens
  const int32_t* seq_len = nullptr;      // [num_seqs], tokens in the cache after this step, >= its query
                                         // length; 0: padding, whose rows of the output stay as they are
  const int32_t* block_table = nullptr;  // [num_seqs, max_blocks], row stride max_blocks
  int64_t q_stride = 0;
  int32_t num_tokens = 0;
  int32_t num_seqs = 0;
  int32_t max_blocks = 0;
  int32_t num_q_heads = 0;
  float scale = 1.0f;
  int32_t window = 0;             // 0: none; the plan must have been made with the same
  float logit_softcap = 0.0f;     // 0: none
  const int32_t* plan = nullptr;  // device copy of the record, AttentionPlanSize::record_ints long
  int32_t decode_workers = 0;     // launch sizes of the plan, from AttentionPlanSize
  int32_t prefill_tiles = 0;
  void* workspace = nullptr;  // device memory, zeroed once when allocated; used by one stream at a time
  int64_t workspace_bytes = 0;
};
using PagedAttentionFn = void (*)(const PagedAttentionParams&, const OpContext&);

}  // namespace fastllm::ops
