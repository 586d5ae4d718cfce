#pragma once

#include "ops/contract/logits.h"

namespace fastllm::ops {

// As LogprobsRow::token: the one in LogprobsParams::tokens.
inline constexpr int32_t kDrawnToken = -2;

// What is asked of one row.
struct LogprobsRow {
  float temperature = 1.0f;      // > 0; logprobs of softmax(logits / temperature). 1 for raw logprobs
  int32_t token = -1;            // its logprob and rank; -1: not asked; kDrawnToken
  int32_t top_k = 0;             // the most likely tokens, at most top_stride; higher logit first, then lower id
  List<int32_t> ids = {};        // logprobs of these
  float* id_logprobs = nullptr;  // [ids.size]
};

// Log-softmax of each row at a few places. A value is within 2e-6 * max(1, |value| / 32) of float64 on the same
// logits; the workspace is a few rows per thread, whatever num_rows. rank = 1 + the tokens with a strictly greater
// logit. -inf logits have logprob -inf (top_k may reach them, lowest ids first). Where +inf is among the logits, the
// tokens that have it share everything equally. A row with a NaN, or with nothing above -inf, has no distribution:
// logprobs NaN, rank 0, ids -1. An id outside the vocabulary has logprob NaN and rank 0; places of top_k beyond the
// vocabulary get id -1 and NaN. Outputs that a row does not ask for are not written.
//
// Raw logprobs: on the logits as the model (and the bitmask) left them. Processed: after ProcessLogits and Sample, on
// SampleParams::filtered, with the row's temperature (1 for a greedy row).
struct LogprobsParams {
  const float* logits = nullptr;      // [num_rows, vocab], row stride logits_stride
  const LogprobsRow* rows = nullptr;  // [num_rows]
  float* token_logprobs = nullptr;    // [num_rows]
  int32_t* token_ranks = nullptr;     // [num_rows]
  int32_t* top_ids = nullptr;         // [num_rows, top_stride]
  float* top_logprobs = nullptr;      // [num_rows, top_stride]
  int64_t logits_stride = 0;
  int32_t top_stride = 0;
  int32_t num_rows = 0;
  int32_t vocab = 0;
  const int32_t* tokens = nullptr;  // [num_rows], or null where no row asks of a drawn token; -1: nothing is asked
};
using LogprobsFn = void (*)(const LogprobsParams&, const OpContext&);

}  // namespace fastllm::ops
