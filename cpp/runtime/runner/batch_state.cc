#include "runtime/runner/batch_state.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/base/check.h"

namespace fastllm::runtime {
namespace {

Status BadPlan(RequestId id, const std::string& what) {
  return Status::Internal("step plan: sequence " + std::to_string(id) + " " + what);
}

std::string Num(int64_t n) { return std::to_string(n); }

}  // namespace

BatchState::BatchState(const BatchLimits& limits) : limits_(limits) {
  for (int32_t slot = num_slots(); slot-- > 0;) free_slots_.push_back(slot);
}

Status BatchState::CheckBlocks(RequestId id, const std::vector<std::vector<BlockId>>& groups) const {
  if (groups.size() != 1) return BadPlan(id, "has tables of " + Num(groups.size()) + " KV groups; this model has 1");
  for (const BlockId b : groups[0]) {
    if (b <= kNullBlock || b >= limits_.num_blocks) {
      return BadPlan(id, "has block " + Num(b) + "; must be in [1, " + Num(limits_.num_blocks - 1) + "]");
    }
  }
  return Status::Ok();
}

Status BatchState::Add(const NewSequence& s) {
  if (s.id == 0) return BadPlan(s.id, "cannot be added: 0 is never an id");
  if (sequences_.contains(s.id)) return BadPlan(s.id, "is added twice");
  const auto count = static_cast<int64_t>(s.tokens.size());
  if (count < 1 || count > limits_.max_model_len) {
    return BadPlan(s.id, "has " + Num(count) + " tokens; must be in [1, " + Num(limits_.max_model_len) + "]");
  }
  if (s.num_prompt_tokens < 1 || s.num_prompt_tokens > count) {
    return BadPlan(s.id, "has " + Num(s.num_prompt_tokens) + " prompt tokens of " + Num(count));
  }
  if (s.num_computed_tokens < 0 || s.num_computed_tokens >= count) {
    return BadPlan(s.id, "has " + Num(s.num_computed_tokens) + " computed tokens of " + Num(count));
  }
  if (s.repeats_last && s.num_computed_tokens != count - 1) {
    return BadPlan(s.id, "repeats its last token and has " + Num(s.num_computed_tokens) + " computed tokens of " +
                             Num(count) + "; must be all but one");
  }
  const auto bad = [this](TokenId t) { return t < 0 || t >= limits_.vocab_size; };
  for (const TokenId t : s.tokens) {
    if (bad(t))
      return BadPlan(s.id, "has token id " + Num(t) + "; must be in [0, " + Num(limits_.vocab_size - 1) + "]");
  }
  for (const TokenId t : s.sampling.banned_until_min) {
    if (bad(t))
      return BadPlan(s.id, "bans token id " + Num(t) + "; must be in [0, " + Num(limits_.vocab_size - 1) + "]");
  }
  if (s.sampling.logits) {
    for (const auto& word : s.sampling.logits->bad_words) {
      if (word.empty()) return BadPlan(s.id, "has a bad word without tokens");
    }
  }
  FASTLLM_RETURN_IF_ERROR(CheckBlocks(s.id, s.block_ids));
  if (free_slots_.empty()) return BadPlan(s.id, "is one more than the " + Num(num_slots()) + " that can be known");
  const bool wants_prompt_logprobs = s.sampling.prompt_logprobs && count == s.num_prompt_tokens;
  if (wants_prompt_logprobs && s.num_computed_tokens > 0) {
    return BadPlan(s.id, "wants prompt logprobs and has " + Num(s.num_computed_tokens) + " computed tokens");
  }
  auto sequence = std::make_unique<RunnerSequence>();
  sequence->tokens = s.tokens;
  sequence->num_prompt_tokens = s.num_prompt_tokens;
  sequence->num_computed_tokens = s.num_computed_tokens;
  sequence->num_cached_tokens = s.num_computed_tokens + (s.repeats_last ? 1 : 0);
  sequence->sampling = s.sampling;
  sequence->blocks = s.block_ids[0];
  sequence->slot = free_slots_.back();
  free_slots_.pop_back();
  sequence->wants_prompt_logprobs = wants_prompt_logprobs;
  if (s.sampling.logits) {
    sequence->logits_state = std::make_unique<LogitsState>(*s.sampling.logits, s.tokens, s.num_prompt_tokens);
  }
  sequences_.emplace(s.id, std::move(sequence));
  described_.emplace(s.id, false);
  return Status::Ok();
}

Status BatchState::Update(const SequenceDiff& diff) {
  const auto it = sequences_.find(diff.id);
  if (it == sequences_.end()) return BadPlan(diff.id, "is updated but not known");
  if (!described_.emplace(diff.id, false).second) return BadPlan(diff.id, "is described twice");
  RunnerSequence& s = *it->second;
  if (diff.num_computed_tokens != s.num_computed_tokens) {
    return BadPlan(diff.id, "has " + Num(diff.num_computed_tokens) + " computed tokens in the plan and " +
                                Num(s.num_computed_tokens) + " here");
  }
  if (diff.new_block_ids.empty()) return Status::Ok();
  FASTLLM_RETURN_IF_ERROR(CheckBlocks(diff.id, diff.new_block_ids));
  s.blocks.insert(s.blocks.end(), diff.new_block_ids[0].begin(), diff.new_block_ids[0].end());
  return Status::Ok();
}

Status BatchState::AddRow(const ScheduledRow& row) {
  const auto described = described_.find(row.id);
  if (described == described_.end()) return BadPlan(row.id, "is scheduled without being added or updated");
  if (std::exchange(described->second, true)) return BadPlan(row.id, "is scheduled twice");
  RunnerSequence& s = *sequences_.at(row.id);
  const int64_t end = int64_t{s.num_computed_tokens} + row.num_tokens;
  const auto known = static_cast<int64_t>(s.tokens.size());
  if (row.num_tokens < 1 || end > known) {
    return BadPlan(row.id, "is scheduled for " + Num(row.num_tokens) + " tokens after " + Num(s.num_computed_tokens) +
                               " of " + Num(known) + " known");
  }
  if (row.sample != (end == known)) {
    return BadPlan(row.id, std::string(row.sample ? "samples" : "does not sample") + " at token " + Num(end) + " of " +
                               Num(known) + " known");
  }
  const auto blocks = static_cast<int64_t>(s.blocks.size());
  if (blocks * limits_.block_size < end || blocks > limits_.max_blocks_per_seq()) {
    return BadPlan(row.id, "has " + Num(blocks) + " blocks of " + Num(limits_.block_size) + " tokens for " + Num(end) +
                               " tokens; at most " + Num(limits_.max_blocks_per_seq()) + " fit the context");
  }
  rows_.push_back({row.id, &s, row.num_tokens, row.sample});
  num_tokens_ += row.num_tokens;
  return Status::Ok();
}

Status BatchState::Apply(const StepPlan& plan) {
  rows_.clear();
  described_.clear();
  num_tokens_ = 0;
  step_id_ = plan.step_id;
  for (const RequestId id : plan.removed) {
    const auto it = sequences_.find(id);
    if (it == sequences_.end()) return BadPlan(id, "is removed but not known");
    free_slots_.push_back(it->second->slot);
    sequences_.erase(it);
  }
  if (static_cast<int64_t>(plan.rows.size()) > limits_.max_num_seqs ||
      plan.total_tokens > limits_.max_num_batched_tokens) {
    return Status::Internal("step plan: " + Num(plan.rows.size()) + " rows and " + Num(plan.total_tokens) +
                            " tokens; the limits are " + Num(limits_.max_num_seqs) + " and " +
                            Num(limits_.max_num_batched_tokens));
  }
  for (const NewSequence& s : plan.added) FASTLLM_RETURN_IF_ERROR(Add(s));
  for (const SequenceDiff& d : plan.diffs) FASTLLM_RETURN_IF_ERROR(Update(d));
  for (const ScheduledRow& row : plan.rows) {
    FASTLLM_RETURN_IF_ERROR(AddRow(row));
    // Checked as it grows, so that the sum cannot wrap.
    if (num_tokens_ > plan.total_tokens) break;
  }
  if (num_tokens_ != plan.total_tokens) {
    return Status::Internal("step plan: total_tokens is " + Num(plan.total_tokens) + "; the rows make " +
                            Num(num_tokens_));
  }
  return Status::Ok();
}

void BatchState::Commit(const std::vector<int32_t>& sampled) {
  size_t next = 0;
  for (const BatchRow& row : rows_) {
    row.sequence->num_computed_tokens += row.num_tokens;
    if (!row.sample) continue;
    // -1: the row's logits held no usable value. The engine ends that request alone; until it says so the sequence
    // goes on with a token that exists.
    const TokenId token = std::max(sampled.at(next++), 0);
    row.sequence->tokens.push_back(token);
    if (row.sequence->logits_state != nullptr) row.sequence->logits_state->Append(token);
  }
  FASTLLM_CHECK(next == sampled.size(), "one token for each row that samples");
}

void BatchState::CommitUnknown() {
  for (const BatchRow& row : rows_) {
    row.sequence->num_computed_tokens += row.num_tokens;
    if (!row.sample) continue;
    row.sequence->tokens.push_back(kUnknownToken);
    row.sequence->unknown_step = step_id_;
  }
}

void BatchState::Learn(uint64_t step_id, RequestId id, TokenId token) {
  const auto it = sequences_.find(id);
  if (it == sequences_.end()) return;
  RunnerSequence& s = *it->second;
  if (s.unknown_step != step_id || s.tokens.back() != kUnknownToken) return;
  s.tokens.back() = std::max(token, 0);
}

}  // namespace fastllm::runtime
