// BatchState: the runner's own copy of what it must know of every sequence, kept up to date by StepPlans.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "core/base/ids.h"
#include "core/step/step_plan.h"
#include "fastllm/status.h"
#include "runtime/sample/logits_state.h"

namespace fastllm::runtime {

// A token that a step on the device has sampled or will sample.
inline constexpr TokenId kUnknownToken = -1;

struct RunnerSequence {
  std::vector<TokenId> tokens;  // prompt, then output; sampled ids are appended here, kUnknownToken until they are back
  int32_t num_prompt_tokens = 0;
  int32_t num_computed_tokens = 0;
  int32_t num_cached_tokens = 0;  // the KV of these was there when the sequence came, and others may read it
  SamplingSpec sampling;
  std::vector<BlockId> blocks;                // the table of the one KV group
  std::unique_ptr<LogitsState> logits_state;  // with sampling.logits
  bool wants_prompt_logprobs = false;         // and none has been given: all its output is still to come
  uint64_t unknown_step = 0;                  // the step whose token is the kUnknownToken at the end of `tokens`
  int32_t slot = 0;                           // a number that no other known sequence has, below num_slots()
  int64_t tallied = 0;                        // of its tokens, counted on the device: see TokenTallies

  int32_t num_output_tokens() const { return static_cast<int32_t>(tokens.size()) - num_prompt_tokens; }

  // Where the KV of a token goes that is computed: block * block_size + row, or -1 where it is not written.
  int64_t SlotOf(int32_t position, int32_t block_size) const {
    if (position < num_cached_tokens) return -1;
    return int64_t{blocks[position / block_size]} * block_size + position % block_size;
  }
};

struct BatchLimits {
  int32_t vocab_size = 0;
  int32_t max_model_len = 0;
  int32_t max_num_seqs = 0;            // rows of one step
  int32_t max_num_batched_tokens = 0;  // tokens of one step
  int32_t num_blocks = 0;
  int32_t block_size = 0;

  int32_t max_blocks_per_seq() const { return (max_model_len + block_size - 1) / block_size; }
};

// One row of the running step.
struct BatchRow {
  RequestId id = 0;
  RunnerSequence* sequence = nullptr;
  int32_t num_tokens = 0;
  bool sample = false;
};

// Worker thread. After an error the state is undefined: the engine is poisoned by then.
class BatchState {
 public:
  explicit BatchState(const BatchLimits& limits);

  // Takes a plan in: removals, additions, differences, then the rows. kInternal names the first thing in it that does
  // not fit what is known: ids, token and block ranges, counts that both sides hold, sizes of the step.
  Status Apply(const StepPlan& plan);

  // The rows of the plan that was applied last.
  const std::vector<BatchRow>& rows() const { return rows_; }
  int32_t num_tokens() const { return num_tokens_; }

  // Ends the step: each row's tokens are computed now; sampled[i] is appended to the i-th row that samples.
  void Commit(const std::vector<int32_t>& sampled);

  // Ends the step when what it samples is not known yet: kUnknownToken is appended to each row that samples.
  void CommitUnknown();

  // Puts a token that CommitUnknown() left open into its place; nothing where its sequence has gone since, or the token
  // is another step's.
  void Learn(uint64_t step_id, RequestId id, TokenId token);

  // Once, before the first plan.
  void SetNumBlocks(int32_t num_blocks) { limits_.num_blocks = num_blocks; }

  // Twice the rows of a step: a plan may hold as many new sequences as there are known ones that sit it out.
  int32_t num_slots() const { return 2 * limits_.max_num_seqs; }

  size_t num_sequences() const { return sequences_.size(); }
  const BatchLimits& limits() const { return limits_; }

 private:
  Status Add(const NewSequence& added);
  Status Update(const SequenceDiff& diff);
  Status AddRow(const ScheduledRow& row);
  Status CheckBlocks(RequestId id, const std::vector<std::vector<BlockId>>& groups) const;

  BatchLimits limits_;
  std::unordered_map<RequestId, std::unique_ptr<RunnerSequence>> sequences_;
  std::unordered_map<RequestId, bool> described_;  // by this plan; true once a row has used it
  std::vector<BatchRow> rows_;
  std::vector<int32_t> free_slots_;
  int32_t num_tokens_ = 0;
  uint64_t step_id_ = 0;  // of the plan that was applied last
};

}  // namespace fastllm::runtime
