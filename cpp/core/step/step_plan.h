// StepPlan: the message from the scheduler to the executor. Plain data, serialisable (codec.h): threads,
// processes, replay and fuzzing all use it. A sequence is described in full once, then by differences.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/base/ids.h"
#include "fastllm/sampling_params.h"

namespace fastllm {

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
