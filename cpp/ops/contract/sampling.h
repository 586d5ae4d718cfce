#pragma once

#include "ops/contract/logits.h"

namespace fastllm::ops {

// How one row is sampled. Order: ban -> greedy when temperature < kGreedyTemperature -> temperature -> top_n_sigma ->
// min_p -> top_k -> typical_p -> top_p -> XTC -> draw. Each filter works on the distribution, renormalised, that the
// ones before it left; each leaves at least one token. Off: top_n_sigma <= 0, min_p <= 0, top_k <= 0 or >= vocab,
// typical_p >= 1, top_p >= 1, xtc_probability <= 0.
struct SampleRow {
  float temperature = 0.0f;
  float top_p = 1.0f;
  float min_p = 0.0f;
  int32_t top_k = 0;
  uint64_t seed = 0;             // the draw is a function of (seed, counter) and the row's logits alone
  uint64_t counter = 0;          // index of the output token
  float typical_p = 1.0f;        // Meister et al. 2022: those whose surprise is nearest the entropy, up to this mass
  float top_n_sigma = 0.0f;      // Tang et al. 2024: logits >= max - n * (standard deviation of the finite logits)
  float xtc_probability = 0.0f;  // p-e-w 2024: with this probability, of the tokens that have at least xtc_threshold
  float xtc_threshold = 0.1f;    // of the mass, all but the least likely are dropped
  bool write_filtered = false;   // see SampleParams::filtered
};
inline constexpr float kGreedyTemperature = 1e-5f;

// What is done to a row's logits before it is sampled, as process_logits does it (contract/logits.h): logit_bias ->
// repetition -> frequency -> presence penalty. For rows whose tokens are known to the device alone; they are counted
// by count_tokens and keep_tokens (contract/feed.h). Every default is off.
struct PenaltyRow {
  int32_t count_row = -1;  // of SampleParams::counts; negative: no penalties
  int32_t bias_begin =
      0;  // its part of SampleParams::biases: distinct ids, those outside the vocabulary are passed over
  int32_t bias_end = 0;
  float repetition_penalty = 1.0f;
  float frequency_penalty = 0.0f;
  float presence_penalty = 0.0f;
};

// How a token's count is kept: the times that it is in the output, at most kMostCounted, and a bit for the prompt.
using TokenTally = uint16_t;
inline constexpr TokenTally kTallyInPrompt = 0x8000;
inline constexpr TokenTally kMostCounted = 0x7fff;

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
  // For processed logprobs, or null: for rows with write_filtered, the logits (not divided by the temperature) with
  // -inf for every token that bans and filters left out. Stride logits_stride; may be logits itself. A row that
  // yields -1 is not written.
  float* filtered = nullptr;
  const PenaltyRow* penalties = nullptr;  // [num_rows], or null: none
  const TokenTally* counts = nullptr;     // [rows of counts, vocab]
  const TokenBias* biases = nullptr;
};
using SampleFn = void (*)(const SampleParams&, const OpContext&);

}  // namespace fastllm::ops
