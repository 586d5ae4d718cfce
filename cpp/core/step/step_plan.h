// StepPlan: the message from the scheduler to the executor. Plain data, serialisable (codec.h): threads,
// processes, replay and fuzzing all use it. A sequence is described in full once, then by differences.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/base/ids.h"
#include "fastllm/sampling_params.h"

namespace fastllm {

// What is done to a row's logits before a token is drawn; meanings as in SamplingParams.
struct LogitsSpec {
  float repetition_penalty = 1.0f;
  float frequency_penalty = 0.0f;
  float presence_penalty = 0.0f;
  std::vector<LogitBias> logit_bias;
  std::vector<TokenId> allowed;  // empty: every token
  std::vector<std::vector<TokenId>> bad_words;
  float dry_multiplier = 0.0f;  // 0: no DRY
  float dry_base = 1.75f;
  int32_t dry_allowed_length = 2;
  int32_t dry_range = 0;
  std::vector<TokenId> dry_breakers;  // ascending

  bool has_penalties() const {
    return repetition_penalty != 1.0f || frequency_penalty != 0.0f || presence_penalty != 0.0f;
  }
};

// Which log probabilities come back with an output token, besides its own.
struct LogprobsSpec {
  int32_t num_top = 0;       // of the most likely tokens; -1: of the whole vocabulary
  std::vector<TokenId> ids;  // of these
};

// What the logits processors of the host are told about a sequence.
struct ProcessorSpec {
  std::vector<int32_t> which;  // take part, of those that the engine was made with
  int32_t index = 0;           // of the output
  SamplingParams params;
};

// What the sampler needs of SamplingParams. top_k 0 = off.
struct SamplingSpec {
  float temperature = 0.0f;
  float top_p = 1.0f;
  int32_t top_k = 0;
  float min_p = 0.0f;
  uint64_t seed = 0;       // random numbers are a function of (seed, output index) alone
  int32_t min_tokens = 0;  // ids in banned_until_min are impossible before this many outputs
  std::vector<TokenId> banned_until_min;
  float typical_p = 1.0f;
  float top_n_sigma = 0.0f;
  float xtc_probability = 0.0f;
  float xtc_threshold = 0.1f;
  std::optional<LogitsSpec> logits;         // absent: the logits are taken as they are
  std::optional<LogprobsSpec> logprobs;     // absent: none come back
  std::optional<int32_t> prompt_logprobs;   // LogprobsSpec::num_top for the prompt tokens; absent: none
  std::optional<ProcessorSpec> processors;  // absent: none takes part
};

// A sequence the executor does not know: new, or resumed after a preemption (tokens then hold prior output too).
struct NewSequence {
  RequestId id = 0;
  std::vector<TokenId> tokens;
  int32_t num_prompt_tokens = 0;
  int32_t num_computed_tokens = 0;  // prefix-cache hit: KV already there for these
  SamplingSpec sampling;
  std::vector<std::vector<BlockId>> block_ids;  // [kv_group][block], covers computed + scheduled tokens
  // num_computed_tokens is one less than the known ones, and the KV of the last is there as well, in a block that
  // others may read: it is computed for its logits, reads its own KV from the cache and writes none.
  bool repeats_last = false;
};

// Blocks added to the tables of a sequence that the executor knows. num_computed_tokens is repeated so that both
// sides can check that they agree. Sent for each scheduled known sequence, in row order.
struct SequenceDiff {
  RequestId id = 0;
  int32_t num_computed_tokens = 0;
  std::vector<std::vector<BlockId>> new_block_ids;  // [kv_group][block], appended; may be empty when no group got any
};

// One row of the ragged batch: the next num_tokens tokens of a sequence. The executor appends sampled ids to its
// own copy of the tokens, so decode rows carry none.
struct ScheduledRow {
  RequestId id = 0;
  int32_t num_tokens = 0;
  bool sample = false;  // the row reaches the end of the known tokens, so its last logits are sampled
};

struct StepPlan {
  uint64_t step_id = 0;
  std::vector<RequestId> removed;  // finished or preempted since the last plan; handled first
  std::vector<NewSequence> added;
  std::vector<SequenceDiff> diffs;
  std::vector<ScheduledRow> rows;  // batch order
  int32_t total_tokens = 0;        // sum of rows[].num_tokens
};

}  // namespace fastllm
