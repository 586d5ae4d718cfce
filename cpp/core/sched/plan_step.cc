// The plan of one step: running sequences, then waiting ones, then what is left of the budget.
#include <algorithm>
#include <utility>

#include "core/sched/scheduler_impl.h"
#include "core/sched/stop.h"

namespace fastllm {
namespace {

// With more sequences than this, a long prompt still gets this part of a step: many small chunks help nobody.
constexpr int32_t kMostShares = 4;

}  // namespace

void Scheduler::Impl::PlanStep(StepPlan* plan) {
  ClearPlan(plan);
  if (num_in_flight() >= max_in_flight()) return;
  step.plan = plan;
  step.budget = config.max_num_batched_tokens;
  step.prompt_budget = PromptBudget();
  step.prompt_share = PromptShare();
  step.most_rows = MostRows();
  step.cut.clear();
  step.slots.clear();
  if (ScheduleRunning()) {
    ScheduleWaiting();
    FillUp();
  }
  if (plan->rows.empty()) return;  // nobody runs it: what is to be removed waits for the next one
  plan->step_id = ++last_step_id;
  std::swap(plan->removed, removed);
  std::swap(in_flight[last_step_id % in_flight.size()], step.slots);
  counters.scheduled_tokens += plan->total_tokens;
}

// A sequence decodes from the step on that follows the last one of its prompt.
int32_t Scheduler::Impl::PromptBudget() const {
  const int32_t most = config.max_num_mixed_prefill_tokens;
  if (most == 0 || !config.enable_chunked_prefill) return step.budget;
  for (SeqSlot slot = running.front(); slot != kNoSlot; slot = table[slot].next) {
    const SequenceRecord& record = table[slot];
    if (record.seq.num_computed_tokens >= record.num_prompt_tokens) return std::min(most, step.budget);
  }
  return step.budget;
}

int32_t Scheduler::Impl::PromptShare() const {
  const int32_t count = num_sequences();
  if (!config.long_prefill_fair_share || !config.enable_chunked_prefill || count <= 1) return step.prompt_budget;
  return std::max(1, step.prompt_budget / std::min(count, kMostShares));
}

// In turns the sequences are spread evenly over the plans that can be in flight.
int32_t Scheduler::Impl::MostRows() const {
  if (!in_turns()) return config.max_num_seqs;
  const int32_t count = std::min(config.max_num_seqs, num_sequences());
  return std::max(1, (count + max_in_flight() - 1) / max_in_flight());
}

int32_t Scheduler::Impl::NumLeft(const SequenceRecord& record) const {
  const Sequence& seq = record.seq;
  const int32_t num_tokens = seq.num_tokens() + record.num_in_flight;
  if (record.num_in_flight > 0) {
    // The token in flight may be the last one by length; whether it stops by its id shows only when it is back.
    const bool at_model_end = config.max_model_len > 0 && num_tokens >= config.max_model_len;
    if (at_model_end || num_tokens - record.num_prompt_tokens >= record.max_tokens) return 0;
  }
  return num_tokens - seq.num_computed_tokens;
}

int32_t Scheduler::Impl::NumNewTokens(int32_t num_left) const {
  const int32_t threshold = config.long_prefill_token_threshold;
  if (threshold > 0 && config.enable_chunked_prefill && num_sequences() > 1) num_left = std::min(num_left, threshold);
  if (num_left > 1) num_left = std::min(num_left, step.prompt_budget);
  return std::min({num_left, step.budget, step.prompt_share});
}

bool Scheduler::Impl::ScheduleRunning() {
  const int64_t preemptions_before = counters.preemptions;
  for (SeqSlot slot = running.front(), next; slot != kNoSlot && step.budget > 0; slot = next) {
    const SequenceRecord& record = table[slot];
    next = record.next;
    if (in_turns() && TokensInFlight(record) > 0) continue;
    if (std::cmp_greater_equal(step.slots.size(), step.most_rows)) break;
    const int32_t num_left = NumLeft(record);
    const int32_t num_new = NumNewTokens(num_left);
    if (num_new <= 0) continue;  // it waits for a token in flight
    if (!MakeRoom(slot, num_new, &next)) continue;
    SequenceDiff& diff = step.plan->diffs.emplace_back();
    diff.id = record.id;
    diff.num_computed_tokens = record.seq.num_computed_tokens;
    TakeGrown(&diff.new_block_ids);
    AddRow(slot, num_left, num_new);
  }
  return counters.preemptions == preemptions_before;
}

bool Scheduler::Impl::MakeRoom(SeqSlot slot, int32_t num_new, SeqSlot* next) {
  const SequenceRecord& record = table[slot];
  while (!kv.Extend(slot, record.seq.tokens, record.seq.num_computed_tokens, num_new, &grown, TokensInFlight(record))) {
    const SeqSlot victim = PickVictim();
    *next = record.next;
    Preempt(victim);
    if (victim == slot) return false;
  }
  *next = record.next;
  return true;
}

SeqSlot Scheduler::Impl::PickVictim() const {
  SeqSlot victim = running.back();
  if (!by_priority()) return victim;
  for (SeqSlot slot = running.front(); slot != kNoSlot; slot = table[slot].next) {
    if (ComesBefore(table[victim], table[slot])) victim = slot;
  }
  return victim;
}

// Only while running sequences are planned, so that nobody has hit the blocks that its row was to fill.
void Scheduler::Impl::TakeOutOfPlan(SeqSlot slot) {
  SequenceRecord& record = table[slot];
  StepPlan& plan = *step.plan;
  const auto at = std::ranges::find(step.slots, slot) - step.slots.begin();
  const ScheduledRow row = plan.rows[at];
  kv.Uncompute(slot, plan.diffs[at].num_computed_tokens);
  if (row.sample) --record.num_in_flight;
  plan.total_tokens -= row.num_tokens;
  step.budget += row.num_tokens;
  if (row.num_tokens > 1 || !row.sample) step.prompt_budget += row.num_tokens;
  plan.rows.erase(plan.rows.begin() + at);
  plan.diffs.erase(plan.diffs.begin() + at);
  step.slots.erase(step.slots.begin() + at);
  std::erase_if(step.cut, [slot](const CutRow& cut) { return cut.slot == slot; });
  for (CutRow& cut : step.cut) cut.row -= cut.row > at ? 1 : 0;
}

void Scheduler::Impl::Preempt(SeqSlot slot) {
  SequenceRecord& record = table[slot];
  if (record.last_step_id == last_step_id + 1) TakeOutOfPlan(slot);
  kv.Free(slot);
  running.Remove(slot);
  record.seq.state = SequenceState::kPreempted;
  record.seq.num_computed_tokens = 0;
  ++record.seq.num_preemptions;
  record.last_step_id = 0;
  record.known_to_executor = false;
  waiting.PushPreempted(slot);
  ++num_preempted_waiting;
  ++counters.preemptions;
  removed.push_back(record.id);
}

int32_t Scheduler::Impl::SpareBlocks() const {
  return running.empty() ? 0 : static_cast<int32_t>(config.watermark * static_cast<float>(kv.pool().num_blocks() - 1));
}

int64_t Scheduler::Impl::AvailableBlocks() const {
  return int64_t{kv.pool().num_free_blocks()} - kv.reserved_blocks() - SpareBlocks();
}

// While no other sequence is admitted, what a sequence lacks shrinks by a block only when one more is available or when
// one more block of its prefix is cached. In a step without a budget for prompts it lacks all but one of its tokens.
bool Scheduler::Impl::MayFitNow(SeqSlot slot) const {
  if (slot != blocked.slot || !can_skip_lookups) return true;
  const int64_t cached = kv.num_units_indexed() - blocked.indexed;
  if (step.prompt_budget == 0 && cached * block_size < blocked.num_left - 1) return false;
  return blocked.shortfall == 0 || AvailableBlocks() - blocked.available + cached >= blocked.shortfall;
}

void Scheduler::Impl::ScheduleWaiting() {
  while (!waiting.empty() && step.budget > 0 && running.size() < config.max_num_seqs &&
         std::cmp_less(step.slots.size(), step.most_rows)) {
    const SeqSlot slot = waiting.front();
    // A token sampled before its preemption must come back first: the executor gets all tokens anew.
    if (table[slot].num_in_flight > 0 || !MayFitNow(slot) || !Admit(slot)) return;
  }
}

bool Scheduler::Impl::Admit(SeqSlot slot) {
  SequenceRecord& record = table[slot];
  Sequence& seq = record.seq;
  const int32_t num_hit = kv.FindPrefix(slot, seq.tokens);
  ++counters.prefix_lookups;
  const int32_t num_left = seq.num_tokens() - num_hit;
  const int32_t num_new = NumNewTokens(num_left);
  if (num_new == 0 || (num_new < num_left && !config.enable_chunked_prefill)) {
    blocked = {slot, 0, kv.num_units_indexed(), 0, num_left};
    return false;
  }
  const bool repeats_last = kv.hit_is_whole();
  if (!kv.Admit(slot, seq.tokens, num_hit, num_new, SpareBlocks())) {
    blocked = {slot, AvailableBlocks(), kv.num_units_indexed(), kv.last_shortfall(), num_left};
    return false;
  }
  blocked = {};
  waiting.Remove(slot);
  if (seq.state == SequenceState::kPreempted) --num_preempted_waiting;
  running.PushBack(slot);
  seq.tokens.reserve(static_cast<size_t>(record.num_prompt_tokens) + record.max_tokens);
  if (seq.num_cached_tokens < 0) {
    seq.num_cached_tokens = num_hit;
    if (kv.index() != nullptr) {
      counters.prefix_query_tokens += seq.num_tokens();
      counters.prefix_hit_tokens += num_hit;
    }
  }
  seq.state = SequenceState::kRunning;
  seq.num_computed_tokens = num_hit;
  if (record.first_step_id == 0) record.first_step_id = last_step_id + 1;
  record.known_to_executor = true;
  step.plan->added.push_back({record.id, seq.tokens, record.num_prompt_tokens, num_hit, MakeSamplingSpec(*seq.request),
                              kv.Tables(slot), repeats_last});
  AddRow(slot, num_left, num_new);
  return true;
}

void Scheduler::Impl::AddRow(SeqSlot slot, int32_t num_left, int32_t num_new) {
  SequenceRecord& record = table[slot];
  record.seq.num_computed_tokens += num_new;
  const bool sample = num_new == num_left;
  if (sample) ++record.num_in_flight;
  if (num_new == step.prompt_share && !sample) {
    step.cut.push_back({static_cast<int32_t>(step.slots.size()), slot, TokensInFlight(record)});
  }
  record.last_step_id = last_step_id + 1;
  record.last_num_tokens = num_new;
  step.plan->rows.push_back({record.id, num_new, sample});
  step.slots.push_back(slot);
  step.plan->total_tokens += num_new;
  step.budget -= num_new;
  if (num_left > 1) step.prompt_budget -= num_new;
  if (!followers.empty() && sample) ReleaseFollowers(record.id);
}

void Scheduler::Impl::FillUp() {
  const int32_t threshold = config.long_prefill_token_threshold;
  for (const CutRow& cut : step.cut) {
    if (step.budget == 0) return;
    SequenceRecord& record = table[cut.slot];
    Sequence& seq = record.seq;
    ScheduledRow& row = step.plan->rows[cut.row];
    const int32_t num_left = seq.num_tokens() - seq.num_computed_tokens;
    int32_t num_more = std::min({num_left, step.budget, step.prompt_budget});
    if (threshold > 0) num_more = std::min(num_more, threshold - row.num_tokens);
    // The row so far is in flight as well. Without a free block the row stays as it is.
    if (num_more <= 0 ||
        !kv.Extend(cut.slot, seq.tokens, seq.num_computed_tokens, num_more, &grown, row.num_tokens + cut.in_flight)) {
      continue;
    }
    const auto num_diffs = static_cast<int32_t>(step.plan->diffs.size());
    TakeGrown(cut.row < num_diffs ? &step.plan->diffs[cut.row].new_block_ids
                                  : &step.plan->added[cut.row - num_diffs].block_ids);
    seq.num_computed_tokens += num_more;
    row.num_tokens += num_more;
    record.last_num_tokens = row.num_tokens;
    row.sample = num_more == num_left;
    if (row.sample) ++record.num_in_flight;
    if (!followers.empty() && row.sample) ReleaseFollowers(record.id);
    step.plan->total_tokens += num_more;
    step.budget -= num_more;
    step.prompt_budget -= num_more;
  }
}

void Scheduler::Impl::TakeGrown(std::vector<std::vector<BlockId>>* blocks) {
  if (std::ranges::all_of(grown, [](const auto& list) { return list.empty(); })) return;
  if (blocks->empty()) {
    blocks->swap(grown);
    if (!spare_lists.empty()) {
      grown.swap(spare_lists.back());
      spare_lists.pop_back();
    }
    return;
  }
  for (size_t group = 0; group < grown.size(); ++group) {
    (*blocks)[group].insert((*blocks)[group].end(), grown[group].begin(), grown[group].end());
    grown[group].clear();
  }
}

void Scheduler::Impl::ClearPlan(StepPlan* plan) {
  for (SequenceDiff& diff : plan->diffs) {
    if (diff.new_block_ids.empty() || spare_lists.size() >= static_cast<size_t>(config.max_num_seqs)) continue;
    for (auto& list : diff.new_block_ids) list.clear();
    spare_lists.push_back(std::move(diff.new_block_ids));
  }
  plan->step_id = 0;
  plan->total_tokens = 0;
  plan->removed.clear();
  plan->added.clear();
  plan->diffs.clear();
  plan->rows.clear();
}

}  // namespace fastllm
