#include "core/engine/engine_loop.h"

#include <exception>
#include <utility>
#include <vector>

#include "core/base/check.h"

namespace fastllm {

EngineLoop::EngineLoop(const SchedConfig& sched, const KvConfig& kv, std::unique_ptr<Executor> executor,
                       std::shared_ptr<const TokenTable> tokens, Inbox* inbox, Outbox* outbox, StatsCell* stats)
    : scheduler_(sched, kv),
      executor_(std::move(executor)),
      router_(std::move(tokens)),
      inbox_(inbox),
      outbox_(outbox),
      stats_(stats) {}

void EngineLoop::Run() noexcept {
  try {
    Loop();
  } catch (const std::exception& e) {
    Poison(e.what());
  } catch (...) {
    Poison("unknown exception in the engine thread");
  }
  outbox_->Close();
}

void EngineLoop::Loop() {
  while (DrainInbox()) {
    while (in_flight_.size() < kMaxInFlight && SubmitStep()) {
    }
    if (!in_flight_.empty()) CompleteStep();
    Publish();
  }
  // Shutdown: the steps in flight end first, so that the executor is idle when it is destroyed.
  while (!in_flight_.empty()) CompleteStep();
  for (const RequestId id : router_.EndAll(FinishReason::kAbort)) scheduler_.Finish(id);
  Publish();
}

bool EngineLoop::DrainInbox() {
  const bool idle = in_flight_.empty() && !scheduler_.HasWork();
  const Inbox::Batch batch = inbox_->Take(/*wait=*/idle);
  bool all_new = true;
  for (const auto& request : batch.adds) all_new &= router_.Add(request);
  // Checked when all are live, so that a failure reports to each of them.
  FASTLLM_CHECK(all_new, "a request was added under an id that is in use");
  for (const auto& request : batch.adds) {
    if (const Status status = scheduler_.Add(request); !status.ok()) {
      router_.End(request->id, FinishReason::kError, status.message());
    }
  }
  for (const RequestId id : batch.aborts) {
    if (router_.End(id, FinishReason::kAbort)) scheduler_.Finish(id);
  }
  return !batch.closed;
}

bool EngineLoop::SubmitStep() {
  if (!scheduler_.HasWork()) return false;
  StepPlan plan = scheduler_.Schedule();
  if (plan.rows.empty()) {
    FASTLLM_CHECK(!in_flight_.empty() || !scheduler_.HasWork(), "requests are left and no step can be planned");
    return false;
  }
  in_flight_.push_back(plan);
  executor_->Submit(std::move(plan));
  return true;
}

void EngineLoop::CompleteStep() {
  const StepResult result = executor_->Wait();
  const StepPlan plan = std::move(in_flight_.front());
  in_flight_.pop_front();
  if (!result.status.ok()) throw InternalError(result.status.ToString());
  FASTLLM_CHECK(result.step_id == plan.step_id,
                "result of step " + std::to_string(result.step_id) + ", expected " + std::to_string(plan.step_id));
  Apply(plan, result);
}

void EngineLoop::Apply(const StepPlan& plan, const StepResult& result) {
  ++num_steps_;
  for (const SampledRow& row : result.rows) {
    for (const TokenId token : row.tokens) {
      if (token >= 0) continue;
      // The row had NaN or nothing finite; the others of the batch are sound. Update() skips what Finish() removed.
      if (router_.End(row.id, FinishReason::kError, "model produced no finite logits")) scheduler_.Finish(row.id);
      break;
    }
  }
  for (SequenceUpdate& update : scheduler_.Update(plan, result)) {
    const RequestId id = update.id;
    if (router_.Route(std::move(update))) scheduler_.Finish(id);
  }
}

// Statistics first: who has seen a request end also sees its blocks free.
void EngineLoop::Publish() {
  const SchedulerStats s = scheduler_.stats();
  EngineStats out;
  out.steps = num_steps_;
  out.running = s.running;
  out.waiting = s.waiting;
  out.used_blocks = s.used_blocks;
  out.preemptions = s.preemptions;
  out.prefix_query_tokens = s.prefix_query_tokens;
  out.prefix_hit_tokens = s.prefix_hit_tokens;
  out.scheduled_tokens = s.scheduled_tokens;
  out.finished_requests = router_.num_finished();
  stats_->Store(out);
  outbox_->Push(router_.TakeDeltas());
}

void EngineLoop::Poison(const std::string& why) noexcept {
  try {
    const std::string reason = "engine failed: " + why;
    inbox_->Close(Status::Unavailable(reason));
    router_.EndAll(FinishReason::kError, reason);
    for (const auto& request : inbox_->Take(/*wait=*/false).adds) {
      if (router_.Add(request)) router_.End(request->id, FinishReason::kError, reason);
    }
    outbox_->Push(router_.TakeDeltas());
  } catch (...) {
    // Out of memory while reporting: nothing more can be said, and the host's process must live.
    inbox_->Close(Status(StatusCode::kUnavailable, ""));
  }
}

}  // namespace fastllm
