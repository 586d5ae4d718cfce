// What a Scheduler is made of. Only for the sources of core/sched: scheduler.cc (requests in, results back) and
// plan_step.cc (the plan of one step).
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "core/kv/kv_manager.h"
#include "core/sched/deadlines.h"
#include "core/sched/followers.h"
#include "core/sched/scheduler.h"
#include "core/sched/sequence_table.h"
#include "core/sched/waiting_queue.h"

namespace fastllm {

struct Scheduler::Impl {
  // A prompt that was cut to its share of the step, and so may get more of it when something is left.
  struct CutRow {
    int32_t row = 0;  // in the plan
    SeqSlot slot = kNoSlot;
    int32_t in_flight = 0;  // tokens of the sequence in the plan before, if that is in flight
  };
  // The step being planned.
  struct Step {
    StepPlan* plan = nullptr;
    int32_t budget = 0;         // tokens left
    int32_t prompt_budget = 0;  // of them for sequences that lack more than one token
    int32_t prompt_share = 0;   // most tokens of one sequence before all others had their turn
    int32_t most_rows = 0;
    std::vector<CutRow> cut;
    std::vector<SeqSlot> slots;  // of the plan's rows
  };
  // Why the first waiting sequence was not admitted, so that the next steps need not look its prefix up again.
  struct Blocked {
    SeqSlot slot = kNoSlot;
    int64_t available = 0;  // blocks, at that time
    int64_t indexed = 0;    // units that were ever cached, at that time
    int32_t shortfall = 0;  // blocks that it lacked; 0: it had no budget
    int32_t num_left = 0;   // tokens behind its cached prefix
  };

  Impl(const SchedConfig& sched, const KvConfig& kv_config, const KvClock& now);

  int32_t num_in_flight() const { return static_cast<int32_t>(last_step_id - last_updated_id); }
  int32_t max_in_flight() const { return config.pipeline_stages + (config.async_scheduling ? 1 : 0); }
  // Whether the plans in flight are of different sequences, which stages of a pipeline compute side by side.
  bool in_turns() const { return config.pipeline_stages > 1; }
  bool by_priority() const { return config.policy == SchedulingPolicy::kPriority; }
  int32_t num_sequences() const { return running.size() + waiting.size(); }

  // plan_step.cc
  void PlanStep(StepPlan* plan);
  // Tokens of a running sequence that are left to compute; those in flight count as known.
  int32_t NumLeft(const SequenceRecord& record) const;
  // Of num_left tokens, those that the step's rules let through.
  int32_t NumNewTokens(int32_t num_left) const;
  int32_t PromptBudget() const;
  int32_t PromptShare() const;
  int32_t MostRows() const;
  bool ScheduleRunning();  // false: it preempted something
  void ScheduleWaiting();
  void FillUp();  // gives what is left of the budget to the cut rows
  // False when the sequence was preempted itself. *next: who comes behind it in `running` after the preemptions.
  bool MakeRoom(SeqSlot slot, int32_t num_new, SeqSlot* next);
  SeqSlot PickVictim() const;
  bool Admit(SeqSlot slot);
  bool MayFitNow(SeqSlot slot) const;
  int64_t AvailableBlocks() const;
  int32_t SpareBlocks() const;
  void AddRow(SeqSlot slot, int32_t num_left, int32_t num_new);
  void TakeOutOfPlan(SeqSlot slot);
  void Preempt(SeqSlot slot);
  // Moves what kv.Extend() put into `grown` behind the lists of `blocks`. Lists of old plans are used again.
  void TakeGrown(std::vector<std::vector<BlockId>>* blocks);
  void ClearPlan(StepPlan* plan);
  int32_t TokensInFlight(const SequenceRecord& record) const {
    return record.last_step_id > last_updated_id ? record.last_num_tokens : 0;
  }

  // scheduler.cc
  Status CheckRoom(const Request& request) const;
  void AddDeadlines(const SequenceRecord& record);
  // The sequence whose prompt is being computed for this one as well; kNoSlot: none.
  SeqSlot LeaderOf(const Request& request) const;
  void ReleaseFollowers(RequestId leader);  // into the waiting queue
  void Remove(SeqSlot slot);
  void ApplySampled(SeqSlot slot, const std::vector<TokenId>& tokens, SequenceUpdate* update);

  const SchedConfig config;
  const int32_t block_size;
  const bool can_skip_lookups;  // MayFitNow() holds for the model's KV groups
  KvClock clock;
  KvManager kv;
  SequenceTable table;
  SlotList running{&table};
  WaitingQueue waiting;
  Followers followers;
  Deadlines deadlines;
  Step step;
  Blocked blocked;
  int32_t num_preempted_waiting = 0;
  std::vector<RequestId> removed;  // the executor is to forget these with the next plan
  std::vector<std::vector<BlockId>> grown;
  std::vector<std::vector<std::vector<BlockId>>> spare_lists;
  std::vector<std::vector<SeqSlot>> in_flight;  // slots of the rows of plan i, at i mod max_in_flight()
  uint64_t last_step_id = 0;                    // of the last plan
  uint64_t last_updated_id = 0;                 // of the last one whose result came back
  uint64_t last_serial = 0;
  SchedulerStats counters;  // the int64_t ones
};

}  // namespace fastllm
