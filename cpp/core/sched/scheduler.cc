#include "core/sched/scheduler.h"

#include <algorithm>
#include <ranges>
#include <string>
#include <utility>

#include "core/base/check.h"
#include "core/sched/scheduler_impl.h"
#include "core/sched/stop.h"

namespace fastllm {
namespace {

constexpr int64_t kNanosPerMilli = 1000000;
constexpr int32_t kMostStages = 1024;

std::string RequestName(const Request& request) { return "request " + std::to_string(request.id); }

}  // namespace

Scheduler::Impl::Impl(const SchedConfig& sched, const KvConfig& kv_config, const KvClock& now)
    : config(sched),
      block_size(kv_config.block_size),
      can_skip_lookups(kv_config.groups.size() == 1 && kv_config.groups[0].kind == KvGroupKind::kFull &&
                       (kv_config.groups[0].block_size == 0 || kv_config.groups[0].block_size == kv_config.block_size)),
      clock(now),
      kv(kv_config, now),
      waiting(&table, sched.policy == SchedulingPolicy::kPriority),
      in_flight(max_in_flight()) {}

SeqSlot Scheduler::Impl::LeaderOf(const Request& request) const {
  if (request.parent_id == 0 || request.parent_id == request.id || !request.read_prefix_cache) return kNoSlot;
  const SeqSlot slot = table.Find(request.parent_id);
  if (slot == kNoSlot || table[slot].seq.num_computed_tokens >= table[slot].num_prompt_tokens) return kNoSlot;
  return slot;
}

void Scheduler::Impl::ReleaseFollowers(RequestId leader) {
  for (const SeqSlot slot : followers.Take(leader) | std::views::reverse) {
    table[slot].following = false;
    waiting.PushPreempted(slot);
  }
}

void Scheduler::Impl::Remove(SeqSlot slot) {
  const SequenceRecord& record = table[slot];
  if (record.known_to_executor) removed.push_back(record.id);
  if (record.seq.state == SequenceState::kRunning) {
    running.Remove(slot);
  } else if (record.following) {
    followers.Remove(record.seq.request->parent_id, slot, record.num_prompt_tokens);
  } else {
    waiting.Remove(slot);
    if (record.seq.state == SequenceState::kPreempted) --num_preempted_waiting;
  }
  if (blocked.slot == slot) blocked = {};
  if (!followers.empty()) ReleaseFollowers(record.id);
  kv.Close(slot);
  table.Erase(slot);
}

void Scheduler::Impl::ApplySampled(SeqSlot slot, const std::vector<TokenId>& tokens, SequenceUpdate* update) {
  SequenceRecord& record = table[slot];
  Sequence& seq = record.seq;
  update->id = record.id;
  update->new_tokens.clear();
  update->finish_reason = FinishReason::kNone;
  update->stop_reason = {};
  update->num_cached_tokens = seq.num_cached_tokens;
  --record.num_in_flight;
  for (TokenId token : tokens) {
    seq.tokens.push_back(token);
    update->new_tokens.push_back(token);
    StopCheck stop = CheckStop(seq, config.max_model_len);
    if (stop.reason == FinishReason::kNone) continue;
    update->finish_reason = stop.reason;
    update->stop_reason = std::move(stop.stop_reason);
    if (seq.state == SequenceState::kRunning) {
      // What its last rows computed stays cached. One of them may still be in flight; see contract.md, "In flight".
      kv.Extend(slot, seq.tokens, std::min(seq.num_computed_tokens, seq.num_tokens()), 0, nullptr);
    }
    Remove(slot);
    break;
  }
}

Scheduler::Scheduler(const SchedConfig& sched, const KvConfig& kv, const KvClock& clock) {
  FASTLLM_CHECK(sched.max_num_seqs >= 1, "max_num_seqs is " + std::to_string(sched.max_num_seqs));
  FASTLLM_CHECK(sched.max_num_batched_tokens >= 1,
                "max_num_batched_tokens is " + std::to_string(sched.max_num_batched_tokens));
  FASTLLM_CHECK(sched.max_model_len >= 0, "max_model_len is " + std::to_string(sched.max_model_len));
  FASTLLM_CHECK(sched.long_prefill_token_threshold >= 0,
                "long_prefill_token_threshold is " + std::to_string(sched.long_prefill_token_threshold));
  FASTLLM_CHECK(sched.max_num_mixed_prefill_tokens >= 0,
                "max_num_mixed_prefill_tokens is " + std::to_string(sched.max_num_mixed_prefill_tokens));
  FASTLLM_CHECK(sched.watermark >= 0 && sched.watermark < 1, "watermark is " + std::to_string(sched.watermark));
  FASTLLM_CHECK(sched.pipeline_stages >= 1 && sched.pipeline_stages <= kMostStages,
                "pipeline_stages is " + std::to_string(sched.pipeline_stages));
  impl_ = std::make_unique<Impl>(sched, kv, clock);
}

Scheduler::~Scheduler() = default;

Status Scheduler::Impl::CheckRoom(const Request& request) const {
  // The KV of the last output token is never stored.
  const int64_t most = static_cast<int64_t>(request.prompt.size()) + request.max_tokens - 1;
  const std::string sizes = RequestName(request) + ": prompt (" + std::to_string(request.prompt.size()) +
                            " tokens) + max_tokens (" + std::to_string(request.max_tokens) + ") can never fit in ";
  if (most > kv.capacity_tokens()) {
    return Status::InvalidArgument(sizes + "the KV pool of " + std::to_string(kv.capacity_tokens()) + " tokens");
  }
  if (!config.enable_chunked_prefill && most > config.max_num_batched_tokens) {
    return Status::InvalidArgument(sizes + "one step of max_num_batched_tokens = " +
                                   std::to_string(config.max_num_batched_tokens) + ", and chunked prefill is off");
  }
  return Status::Ok();
}

void Scheduler::Impl::AddDeadlines(const SequenceRecord& record) {
  const Request& request = *record.seq.request;
  const int64_t timeout = request.timeout_ms > 0 ? request.timeout_ms : config.request_timeout_ms;
  const int64_t max_queue = request.max_queue_ms > 0 ? request.max_queue_ms : config.max_queue_ms;
  const int64_t arrival_ms = record.arrival_ns / kNanosPerMilli;
  if (timeout > 0) deadlines.Add({arrival_ms + timeout, record.serial, record.id, false});
  if (max_queue > 0) deadlines.Add({arrival_ms + max_queue, record.serial, record.id, true});
}

Status Scheduler::Add(std::shared_ptr<const Request> request) {
  if (request == nullptr) return Status::InvalidArgument("the request is null");
  const std::string name = RequestName(*request);
  if (request->id == 0) return Status::InvalidArgument("request id 0 is reserved");
  if (request->prompt.empty()) return Status::InvalidArgument(name + ": the prompt has 0 tokens, at least 1 is needed");
  if (request->max_tokens < 1) {
    return Status::InvalidArgument(name + ": max_tokens is " + std::to_string(request->max_tokens) +
                                   ", at least 1 is needed");
  }
  if (impl_->table.Find(request->id) != kNoSlot) return Status::InvalidArgument(name + " is queued already");
  FASTLLM_RETURN_IF_ERROR(impl_->CheckRoom(*request));
  Sequence sequence;
  sequence.tokens = request->prompt;
  sequence.request = std::move(request);
  const SeqSlot slot = impl_->table.Insert(std::move(sequence));
  SequenceRecord& record = impl_->table[slot];
  const int64_t arrival_ns = record.seq.request->arrival_ns;
  record.arrival_ns = arrival_ns != 0 ? arrival_ns : impl_->clock() * kNanosPerMilli;
  record.serial = ++impl_->last_serial;
  impl_->AddDeadlines(record);
  const Request& queued = *record.seq.request;
  impl_->kv.Open(slot, queued.extra_keys, queued.read_prefix_cache, queued.parent_id);
  impl_->kv.Reserve(slot, record.num_prompt_tokens + record.max_tokens - 1);
  record.following = impl_->LeaderOf(*record.seq.request) != kNoSlot;
  if (record.following) {
    impl_->followers.Add(record.seq.request->parent_id, slot, record.num_prompt_tokens);
  } else {
    impl_->waiting.Push(slot);
  }
  return Status::Ok();
}

std::vector<ExpiredRequest> Scheduler::Expire() {
  std::vector<ExpiredRequest> expired;
  if (impl_->deadlines.empty()) return expired;
  const int64_t now = impl_->clock();
  for (Deadline due; impl_->deadlines.TakeDue(now, &due);) {
    const SeqSlot slot = impl_->table.Find(due.id);
    if (slot == kNoSlot || impl_->table[slot].serial != due.serial) continue;
    const SequenceRecord& record = impl_->table[slot];
    if (due.queue_only && record.first_step_id != 0) continue;
    const int64_t arrival_ms = record.arrival_ns / kNanosPerMilli;
    std::string reason = due.queue_only ? "still queued after " : "not finished after ";
    reason += std::to_string(now - arrival_ms);
    reason += " ms (limit ";
    reason += std::to_string(due.at_ms - arrival_ms);
    reason += " ms)";
    expired.push_back(
        {due.id, due.queue_only ? StatusCode::kResourceExhausted : StatusCode::kDeadlineExceeded, std::move(reason)});
    impl_->Remove(slot);
  }
  return expired;
}

bool Scheduler::Finish(RequestId id) {
  const SeqSlot slot = impl_->table.Find(id);
  if (slot == kNoSlot) return false;
  impl_->Remove(slot);
  return true;
}

StepPlan Scheduler::Schedule() {
  StepPlan plan;
  ScheduleInto(&plan);
  return plan;
}

void Scheduler::ScheduleInto(StepPlan* plan) { impl_->PlanStep(plan); }

std::vector<SequenceUpdate> Scheduler::Update(const StepPlan& plan, const StepResult& result) {
  std::vector<SequenceUpdate> updates;
  UpdateInto(plan, result, &updates);
  return updates;
}

void Scheduler::UpdateInto(const StepPlan& plan, const StepResult& result, std::vector<SequenceUpdate>* updates) {
  FASTLLM_CHECK(result.status.ok(), "the step failed: " + result.status.ToString());
  FASTLLM_CHECK(result.step_id == plan.step_id, "result of step " + std::to_string(result.step_id) +
                                                    " for the plan of step " + std::to_string(plan.step_id));
  FASTLLM_CHECK(plan.step_id == impl_->last_updated_id + 1 && plan.step_id <= impl_->last_step_id,
                "the result of step " + std::to_string(plan.step_id) + " came after that of step " +
                    std::to_string(impl_->last_updated_id));
  const std::vector<SeqSlot>& slots = impl_->in_flight[plan.step_id % impl_->in_flight.size()];
  FASTLLM_CHECK(plan.rows.size() == slots.size(),
                "the plan has " + std::to_string(plan.rows.size()) + " rows, it had " + std::to_string(slots.size()));
  updates->resize(result.rows.size());
  size_t next = 0, num_updates = 0;
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const ScheduledRow& row = plan.rows[i];
    if (!row.sample) continue;
    FASTLLM_CHECK(next < result.rows.size() && result.rows[next].id == row.id,
                  "sampled rows differ from the plan at request " + std::to_string(row.id));
    const SampledRow& sampled = result.rows[next++];
    FASTLLM_CHECK(!sampled.tokens.empty(), "no token for request " + std::to_string(row.id));
    const SequenceRecord& record = impl_->table[slots[i]];
    // Ended meanwhile; slot and id may even be in use again.
    if (record.id != row.id || record.first_step_id == 0 || record.first_step_id > plan.step_id) continue;
    SequenceUpdate& update = (*updates)[num_updates++];
    update.result_row = static_cast<int32_t>(next - 1);
    impl_->ApplySampled(slots[i], sampled.tokens, &update);
  }
  FASTLLM_CHECK(next == result.rows.size(), "the result has more rows than the plan samples");
  updates->resize(num_updates);
  impl_->last_updated_id = plan.step_id;
}

int32_t Scheduler::max_in_flight() const { return impl_->max_in_flight(); }

bool Scheduler::HasWork() const { return !impl_->running.empty() || !impl_->waiting.empty(); }

SchedulerStats Scheduler::stats() const {
  SchedulerStats stats = impl_->counters;
  stats.running = impl_->running.size();
  stats.waiting = impl_->waiting.size() + impl_->followers.size();
  stats.waiting_preempted = impl_->num_preempted_waiting;
  stats.queued_tokens = impl_->waiting.num_tokens() + impl_->followers.num_tokens();
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
