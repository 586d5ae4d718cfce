#pragma once

#include "ops/contract/sampling.h"

namespace fastllm::ops {

// The first op of a step. Token ids that the host knows are taken from `planned`; those that the step before sampled
// come from `last_tokens`, so that nothing waits for the host. Block tables arrive packed, and are spread to rows of a
// fixed stride, so that a captured graph reads them at the same place whatever their width.
struct FeedTokensParams {
  int32_t* ids = nullptr;                 // out, [num_tokens]
  const int32_t* planned = nullptr;       // [num_tokens]; t >= 0: the id t; t < 0: last_tokens[-1 - t]
  const int32_t* last_tokens = nullptr;   // [num_slots]
  int32_t* block_table = nullptr;         // out, [num_seqs, max_blocks]; entries from *table_width on are left alone
  const int32_t* packed_table = nullptr;  // [num_seqs, *table_width]
  const int32_t* table_width = nullptr;   // one value, at most max_blocks
  int32_t num_tokens = 0;
  int32_t num_seqs = 0;
  int32_t max_blocks = 0;
  int32_t num_slots = 0;
};
using FeedTokensFn = void (*)(const FeedTokensParams&, const OpContext&);

// The last op of a step: last_tokens[slots[r]] = max(tokens[r], 0), where -1 (a row without a usable logit) becomes a
// token that exists; the engine ends that request alone. A negative slot is skipped. With `counts`, the token is also
// counted as output in row count_rows[r], unless that is negative.
struct KeepTokensParams {
  int32_t* last_tokens = nullptr;   // [num_slots]
  const int32_t* tokens = nullptr;  // [num_rows]
  const int32_t* slots = nullptr;   // [num_rows], distinct unless negative
  int32_t num_rows = 0;
  int32_t num_slots = 0;
  TokenTally* counts = nullptr;         // [num_count_rows, vocab], or null
  const int32_t* count_rows = nullptr;  // [num_rows], distinct unless negative
  int32_t num_count_rows = 0;
  int32_t vocab = 0;
};
using KeepTokensFn = void (*)(const KeepTokensParams&, const OpContext&);

// Tokens ids[begin, end) go into row `row` of the counts; the first num_prompt of them as prompt, the others as output.
struct CountSegment {
  int32_t row = 0;
  int32_t begin = 0;
  int32_t end = 0;
  int32_t num_prompt = 0;
  bool reset = false;  // the row is zeroed first
};

// Counts what the host knows of sequences whose next tokens are sampled with penalties. Rows of segments are distinct.
// Ids and rows outside their range are passed over on devices, and an error on the CPU.
struct CountTokensParams {
  TokenTally* counts = nullptr;  // [num_count_rows, vocab]
  const CountSegment* segments = nullptr;
  const int32_t* ids = nullptr;
  int32_t num_segments = 0;
  int32_t num_count_rows = 0;
  int32_t vocab = 0;
};
using CountTokensFn = void (*)(const CountTokensParams&, const OpContext&);

}  // namespace fastllm::ops
