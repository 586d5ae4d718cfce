#pragma once

#include "ops/contract/common.h"

namespace fastllm::ops {

// How one row is sampled. Order: ban -> greedy when temperature < kGreedyTemperature -> temperature -> min_p ->
// top_k -> top_p -> draw. top_k <= 0 and top_k >= vocab, top_p >= 1 and min_p <= 0 are off.
struct SampleRow {
  float temperature = 0.0f;
  float top_p = 1.0f;
  float min_p = 0.0f;
  int32_t top_k = 0;
  uint64_t seed = 0;     // the draw is a function of (seed, counter) and the row's logits alone
  uint64_t counter = 0;  // index of the output token
};
inline constexpr float kGreedyTemperature = 1e-5f;

// tokens[r] = a draw from logits[r, :]. Greedy ties go to the lowest id. Rows are independent of each other: the
// same logits, row and bans give the same token in any batch. A row whose logits hold no finite value, or a NaN,
// yields -1.
struct SampleParams {
  const float* logits = nullptr;       // [num_rows, vocab], row stride logits_stride; not modified
  int32_t* tokens = nullptr;           // [num_rows]
  const SampleRow* rows = nullptr;     // [num_rows]
  const int32_t* ban_ids = nullptr;    // flattened ids that row r may not pick: ban_ids[ban_start[r] .. ban_start[r+1])
  const int32_t* ban_start = nullptr;  // [num_rows + 1], or null: no bans
  int64_t logits_stride = 0;
  int32_t num_rows = 0;
  int32_t vocab = 0;
};
using SampleFn = void (*)(const SampleParams&, const OpContext&);

}  // namespace fastllm::ops
