#pragma once

#include "ops/contract/common.h"

namespace fastllm::ops {

// out[t, :] = table[ids[t] - first_id, :], or zeros for an id whose row the table, being a part of a larger one, lacks.
struct EmbeddingParams {
  void* out = nullptr;           // [num_tokens, hidden]
  const void* table = nullptr;   // [vocab, hidden]
  const int32_t* ids = nullptr;  // [num_tokens], each in [0, num_ids), or [0, vocab) where num_ids is 0
  int32_t num_tokens = 0;
  int32_t hidden = 0;
  int32_t vocab = 0;
  int32_t first_id = 0;
  int32_t num_ids = 0;
};
using EmbeddingFn = void (*)(const EmbeddingParams&, const OpContext&);

// out[i, :] = in[rows[i], :]; picks the hidden states whose logits are wanted.
struct GatherRowsParams {
  void* out = nullptr;            // [num_rows, hidden]
  const void* in = nullptr;       // [*, hidden]
  const int32_t* rows = nullptr;  // [num_rows]; null: row 0 for all
  int32_t num_rows = 0;
  int32_t hidden = 0;
};
using GatherRowsFn = void (*)(const GatherRowsParams&, const OpContext&);

}  // namespace fastllm::ops
