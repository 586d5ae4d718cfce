#include "core/sched/scheduler.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/base/check.h"
#include "core/kv/kv_manager.h"
#include "core/request/sequence.h"
#include "core/sched/sequence_table.h"
#include "core/sched/stop.h"

namespace fastllm {

struct Scheduler::Impl {
  Impl(const SchedConfig& sched, const KvConfig& kv_config) : config(sched), kv(kv_config) {}

  int32_t num_in_flight() const { return static_cast<int32_t>(last_step_id - last_updated_id); }
  int32_t max_in_flight() const { return config.async_scheduling ? 2 : 1; }
  // Tokens of a running sequence that are left to compute; those in flight count as known.
  int32_t NumLeft(const SequenceRecord& record) const;
  // Of num_left tokens, those that the step's rules and `budget` let through.
  int32_t NumNewTokens(int32_t num_left, int32_t budget) const;
  // Both take tokens from *budget. ScheduleRunning() is false when it preempted something.
  bool ScheduleRunning(StepPlan* plan, int32_t* budget);
  void ScheduleWaiting(StepPlan* plan, int32_t* budget);
  void AddRow(SequenceRecord* record, int32_t num_new, StepPlan* plan, int32_t* budget);
  void Preempt(SeqSlot slot);
  void Remove(SeqSlot slot);
  SequenceUpdate ApplySampled(SeqSlot slot, const std::vector<TokenId>& tokens);

  const SchedConfig config;
  KvManager kv;
  SequenceTable table;
  SlotList running{&table};
  SlotList waiting{&table};
  std::vector<RequestId> removed;  // the executor is to forget these with the next plan
  uint64_t last_step_id = 0;       // of the last plan
  uint64_t last_updated_id = 0;    // of the last one whose result came back
  SchedulerStats counters;         // the int64_t ones
};

int32_t Scheduler::Impl::NumNewTokens(int32_t num_left, int32_t budget) const {
  const int32_t threshold = config.long_prefill_token_threshold;
  const bool alone = running.size() + waiting.size() == 1;
  if (threshold > 0 && !alone && config.enable_chunked_prefill) num_left = std::min(num_left, threshold);
  return std::min(num_left, budget);
}

int32_t Scheduler::Impl::NumLeft(const SequenceRecord& record) const {
  const Sequence& seq = record.seq;
  const int32_t num_tokens = seq.num_tokens() + record.num_in_flight;
  if (record.num_in_flight > 0) {
    // The token in flight may be the last one by length; whether it stops by its id shows only when it is back.
    const bool at_model_end = config.max_model_len > 0 && num_tokens >= config.max_model_len;
    if (at_model_end || num_tokens - seq.num_prompt_tokens() >= seq.request->max_tokens) return 0;
  }
  return num_tokens - seq.num_computed_tokens;
}

bool Scheduler::Impl::ScheduleRunning(StepPlan* plan, int32_t* budget) {
  const int64_t preemptions_before = counters.preemptions;
  for (SeqSlot slot = running.front(); slot != kNoSlot && *budget > 0; slot = table[slot].next) {
    SequenceRecord& record = table[slot];
    const Sequence& seq = record.seq;
    const int32_t num_new = NumNewTokens(NumLeft(record), *budget);
    if (num_new <= 0) continue;  // it waits for a token in flight
    SequenceDiff& diff = plan->diffs.emplace_back();
    diff.id = record.id;
    diff.num_computed_tokens = seq.num_computed_tokens;
    diff.new_block_ids.resize(kv.num_groups());
    // Victims come from the back and this loop runs from the front, so none of them is in the plan.
    bool has_room = true;
    const int32_t in_flight = record.last_step_id > last_updated_id ? record.last_num_tokens : 0;
    while (!kv.Extend(slot, seq.tokens, seq.num_computed_tokens, num_new, &diff.new_block_ids, in_flight)) {
      const SeqSlot victim = running.back();
      Preempt(victim);
      if (victim == slot) {
        has_room = false;
        break;
      }
    }
    if (!has_room) {
      plan->diffs.pop_back();
      break;  // it was the last one
    }
    AddRow(&record, num_new, plan, budget);
  }
  return counters.preemptions == preemptions_before;
}

void Scheduler::Impl::ScheduleWaiting(StepPlan* plan, int32_t* budget) {
  while (!waiting.empty() && *budget > 0 && running.size() < config.max_num_seqs) {
    const SeqSlot slot = waiting.front();
    SequenceRecord& record = table[slot];
    Sequence& seq = record.seq;
    // A token sampled before its preemption must come back first: the executor gets all tokens anew.
    if (record.num_in_flight > 0) break;
    const int32_t num_hit = kv.FindPrefix(slot, seq.tokens);
    const int32_t num_left = seq.num_tokens() - num_hit;
    const int32_t num_new = NumNewTokens(num_left, *budget);
    if (num_new < num_left && !config.enable_chunked_prefill) break;
    if (!kv.Admit(slot, seq.tokens, num_hit, num_new)) break;
    waiting.Remove(slot);
    running.PushBack(slot);
    if (seq.num_cached_tokens < 0) {
      seq.num_cached_tokens = num_hit;
      if (kv.index() != nullptr) counters.prefix_query_tokens += seq.num_tokens();
      counters.prefix_hit_tokens += num_hit;
    }
    seq.state = SequenceState::kRunning;
    seq.num_computed_tokens = num_hit;
    if (record.first_step_id == 0) record.first_step_id = last_step_id + 1;
    record.known_to_executor = true;
    plan->added.push_back(
        {record.id, seq.tokens, seq.num_prompt_tokens(), num_hit, MakeSamplingSpec(*seq.request), kv.Tables(slot)});
    AddRow(&record, num_new, plan, budget);
  }
}

void Scheduler::Impl::AddRow(SequenceRecord* record, int32_t num_new, StepPlan* plan, int32_t* budget) {
  Sequence& seq = record->seq;
  seq.num_computed_tokens += num_new;
  const bool sample = seq.num_computed_tokens == seq.num_tokens() + record->num_in_flight;
  if (sample) ++record->num_in_flight;
  record->last_step_id = last_step_id + 1;
  record->last_num_tokens = num_new;
  plan->rows.push_back({record->id, num_new, sample});
  plan->total_tokens += num_new;
  *budget -= num_new;
}

void Scheduler::Impl::Preempt(SeqSlot slot) {
  SequenceRecord& record = table[slot];
  kv.Free(slot);
  running.Remove(slot);
  waiting.PushFront(slot);
  record.seq.state = SequenceState::kPreempted;
  record.seq.num_computed_tokens = 0;
  ++record.seq.num_preemptions;
  ++counters.preemptions;
  removed.push_back(record.id);
  record.known_to_executor = false;
}

void Scheduler::Impl::Remove(SeqSlot slot) {
  const SequenceRecord& record = table[slot];
  if (record.known_to_executor) removed.push_back(record.id);
  (record.seq.state == SequenceState::kRunning ? running : waiting).Remove(slot);
  kv.Close(slot);
  table.Erase(slot);
}

SequenceUpdate Scheduler::Impl::ApplySampled(SeqSlot slot, const std::vector<TokenId>& tokens) {
  SequenceRecord& record = table[slot];
  Sequence& seq = record.seq;
  SequenceUpdate update;
  update.id = record.id;
  update.num_cached_tokens = seq.num_cached_tokens;
  --record.num_in_flight;
  for (TokenId token : tokens) {
    seq.tokens.push_back(token);
    update.new_tokens.push_back(token);
    StopCheck stop = CheckStop(seq, config.max_model_len);
    if (stop.reason == FinishReason::kNone) continue;
    update.finish_reason = stop.reason;
    update.stop_reason = std::move(stop.stop_reason);
    if (seq.state == SequenceState::kRunning) {
      // What its last rows computed stays cached. One of them may still be in flight; see contract.md, "in flight".
      kv.Extend(slot, seq.tokens, std::min(seq.num_computed_tokens, seq.num_tokens()), 0, nullptr);
    }
    Remove(slot);
    break;
  }
  return update;
}

Scheduler::Scheduler(const SchedConfig& sched, const KvConfig& kv) {
  FASTLLM_CHECK(sched.max_num_seqs >= 1, "max_num_seqs is " + std::to_string(sched.max_num_seqs));
  FASTLLM_CHECK(sched.max_num_batched_tokens >= 1,
                "max_num_batched_tokens is " + std::to_string(sched.max_num_batched_tokens));
  FASTLLM_CHECK(sched.max_model_len >= 0, "max_model_len is " + std::to_string(sched.max_model_len));
  FASTLLM_CHECK(sched.long_prefill_token_threshold >= 0,
                "long_prefill_token_threshold is " + std::to_string(sched.long_prefill_token_threshold));
  impl_ = std::make_unique<Impl>(sched, kv);
}

Scheduler::~Scheduler() = default;

Status Scheduler::Add(std::shared_ptr<const Request> request) {
  if (request == nullptr) return Status::InvalidArgument("the request is null");
  const std::string name = "request " + std::to_string(request->id);
  if (request->id == 0) return Status::InvalidArgument("request id 0 is reserved");
  if (request->prompt.empty()) return Status::InvalidArgument(name + ": the prompt has 0 tokens, at least 1 is needed");
  if (request->max_tokens < 1) {
    return Status::InvalidArgument(name + ": max_tokens is " + std::to_string(request->max_tokens) +
                                   ", at least 1 is needed");
  }
  if (impl_->table.Find(request->id) != kNoSlot) return Status::InvalidArgument(name + " is queued already");
  // The KV of the last output token is never stored.
  const int64_t most = static_cast<int64_t>(request->prompt.size()) + request->max_tokens - 1;
  const std::string sizes = name + ": prompt (" + std::to_string(request->prompt.size()) + " tokens) + max_tokens (" +
                            std::to_string(request->max_tokens) + ") can never fit in ";
  if (most > impl_->kv.capacity_tokens()) {
    return Status::InvalidArgument(sizes + "the KV pool of " + std::to_string(impl_->kv.capacity_tokens()) + " tokens");
  }
  if (!impl_->config.enable_chunked_prefill && most > impl_->config.max_num_batched_tokens) {
    return Status::InvalidArgument(
        sizes + "one step of max_num_batched_tokens = " + std::to_string(impl_->config.max_num_batched_tokens) +
        ", and chunked prefill is off");
  }
  Sequence sequence;
  sequence.tokens = request->prompt;
  sequence.request = std::move(request);
  const SeqSlot slot = impl_->table.Insert(std::move(sequence));
  impl_->kv.Open(slot, impl_->table[slot].seq.request->cache_salt);
  impl_->kv.Reserve(slot, static_cast<int32_t>(most));
  impl_->waiting.PushBack(slot);
  return Status::Ok();
}

bool Scheduler::Finish(RequestId id) {
  const SeqSlot slot = impl_->table.Find(id);
  if (slot == kNoSlot) return false;
  impl_->Remove(slot);
  return true;
}

StepPlan Scheduler::Schedule() {
  StepPlan plan;
  if (impl_->num_in_flight() >= impl_->max_in_flight()) return plan;
  plan.diffs.reserve(impl_->running.size());
  plan.rows.reserve(std::min(impl_->running.size() + impl_->waiting.size(), impl_->config.max_num_seqs));
  int32_t budget = impl_->config.max_num_batched_tokens;
  if (impl_->ScheduleRunning(&plan, &budget)) impl_->ScheduleWaiting(&plan, &budget);
  if (plan.rows.empty()) return plan;  // nobody runs it: what is to be removed waits for the next one
  plan.step_id = ++impl_->last_step_id;
  plan.removed = std::exchange(impl_->removed, {});
  impl_->counters.scheduled_tokens += plan.total_tokens;
  return plan;
}

std::vector<SequenceUpdate> Scheduler::Update(const StepPlan& plan, const StepResult& result) {
  FASTLLM_CHECK(result.status.ok(), "the step failed: " + result.status.ToString());
  FASTLLM_CHECK(result.step_id == plan.step_id, "result of step " + std::to_string(result.step_id) +
                                                    " for the plan of step " + std::to_string(plan.step_id));
  FASTLLM_CHECK(plan.step_id == impl_->last_updated_id + 1 && plan.step_id <= impl_->last_step_id,
                "the result of step " + std::to_string(plan.step_id) + " came after that of step " +
                    std::to_string(impl_->last_updated_id));
  std::vector<SequenceUpdate> updates;
  updates.reserve(result.rows.size());
  size_t next = 0;
  for (const ScheduledRow& row : plan.rows) {
    if (!row.sample) continue;
    FASTLLM_CHECK(next < result.rows.size() && result.rows[next].id == row.id,
                  "sampled rows differ from the plan at request " + std::to_string(row.id));
    const SampledRow& sampled = result.rows[next++];
    FASTLLM_CHECK(!sampled.tokens.empty(), "no token for request " + std::to_string(row.id));
    const SeqSlot slot = impl_->table.Find(row.id);
    // Ended meanwhile; the id may even be in use again.
    if (slot == kNoSlot || impl_->table[slot].first_step_id == 0 || impl_->table[slot].first_step_id > plan.step_id) {
      continue;
    }
    updates.push_back(impl_->ApplySampled(slot, sampled.tokens));
  }
  FASTLLM_CHECK(next == result.rows.size(), "the result has more rows than the plan samples");
  impl_->last_updated_id = plan.step_id;
  return updates;
}

int32_t Scheduler::max_in_flight() const { return impl_->max_in_flight(); }

bool Scheduler::HasWork() const { return !impl_->running.empty() || !impl_->waiting.empty(); }

SchedulerStats Scheduler::stats() const {
  SchedulerStats stats = impl_->counters;
  stats.running = impl_->running.size();
  stats.waiting = impl_->waiting.size();
  stats.used_blocks = impl_->kv.pool().num_used_blocks();
  stats.free_blocks = impl_->kv.pool().num_free_blocks();
  return stats;
}

bool Scheduler::ResetPrefixCache() { return impl_->kv.ResetPrefixCache(); }

int32_t Scheduler::CountCachedTokens(std::span<const TokenId> tokens, const ExtraKeys& keys) const {
  return impl_->kv.CountCachedTokens(tokens, keys);
}

Result<int32_t> Scheduler::PinPrefix(std::span<const TokenId> tokens, const ExtraKeys& keys, int32_t priority,
                                     int64_t ttl_ms) {
  return impl_->kv.PinPrefix(tokens, keys, priority, ttl_ms);
}

PrefixCacheStats Scheduler::prefix_cache_stats() const { return impl_->kv.stats(); }

KvEventRing* Scheduler::kv_events() const { return impl_->kv.events(); }

}  // namespace fastllm
