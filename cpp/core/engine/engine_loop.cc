#include "core/engine/engine_loop.h"

#include <pthread.h>

#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

#include "core/base/check.h"

namespace fastllm {
namespace {

int64_t Nanos(std::chrono::steady_clock::duration d) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(d).count();
}

}  // namespace

EngineLoop::EngineLoop(const SchedConfig& sched, const KvConfig& kv, std::unique_ptr<Executor> executor,
                       std::shared_ptr<const TokenTable> tokens, std::unique_ptr<Recorder> recorder,
                       EngineChannels* channels)
    : scheduler_(sched, kv, [this] { return now_ms_; }),
      executor_(std::move(executor)),
      router_(std::move(tokens)),
      recorder_(std::move(recorder)),
      pipeline_(scheduler_.max_in_flight()),
      channels_(channels) {
  totals_.total_blocks = kv.num_blocks - 1;
  // Found out by a thread of the executor while this one may sleep in the inbox.
  executor_->WatchFailure([channels](const Status& why) {
    Control control;
    control.kind = Control::Kind::kFailed;
    control.why = why;
    channels->inbox.Post(std::move(control));
  });
}

void EngineLoop::Run() noexcept {
  pthread_setname_np(pthread_self(), "fastllm-engine");
  try {
    Loop();
  } catch (const std::exception& e) {
    Poison(e.what());
  } catch (...) {
    Poison("unknown exception in the engine thread");
  }
  channels_->heartbeat.Rest();
  channels_->outbox.Close();
  executor_->Close();
}

void EngineLoop::Loop() {
  while (DrainInbox()) {
    if (std::exchange(controls_.handled, false)) {  // not behind the step that comes next
      Publish();
      Answer();
    }
    while (Planning() && std::cmp_less(pipeline_.size, scheduler_.max_in_flight()) && SubmitStep()) {
    }
    if (pipeline_.size > 0) CompleteStep();
    Publish();
    Answer();
  }
  // Shutdown: the steps in flight end first, so that the executor is idle when it is destroyed.
  while (pipeline_.size > 0) CompleteStep();
  for (const RequestId id : router_.EndAll(FinishReason::kAbort)) Forget(id);
  held_ = {};
  Publish();
  AnswerAll(channels_->inbox.status());
}

bool EngineLoop::DrainInbox() {
  const bool quiet = Quiet();
  if (quiet) channels_->heartbeat.Rest();
  Inbox::Batch batch = channels_->inbox.Take(/*wait=*/quiet);
  const Clock::time_point now = Clock::now();
  channels_->heartbeat.Beat(now);
  SetTime(now);
  bool all_new = true;
  for (const auto& request : batch.adds) all_new &= router_.Add(request, now);
  if (!all_new) {
    // Thrown when all are live, so that the failure reports to each of them, and to whoever waits for an answer.
    for (Control& control : batch.controls) controls_.quiet.push_back(std::move(control));
    throw InternalError("a request was added under an id that is in use");
  }
  for (auto& request : batch.adds) {
    if (admission_ == Admission::kOpen) {
      Schedule(request);
    } else {
      held_.num_tokens += static_cast<int64_t>(request->prompt.size());
      held_.requests.push_back(std::move(request));
    }
  }
  for (const RequestId handle : batch.aborts) {
    for (const RequestId id : router_.LiveOf(handle)) {
      if (router_.End(id, FinishReason::kAbort)) Forget(id);
    }
  }
  controls_.handled = !batch.controls.empty();
  for (Control& control : batch.controls) Handle(std::move(control));
  return !batch.closed;
}

void EngineLoop::Schedule(const std::shared_ptr<const Request>& request) {
  if (recorder_ != nullptr) recorder_->OnAdd(*request);
  if (const Status status = scheduler_.Add(request); !status.ok()) {
    router_.End(request->id, FinishReason::kError, status);
  }
}

// The request is not live any more.
void EngineLoop::Forget(RequestId id) {
  if (recorder_ != nullptr) recorder_->OnFinish(id);
  if (scheduler_.Finish(id)) return;
  std::erase_if(held_.requests, [this, id](const auto& request) {
    if (request->id != id) return false;
    held_.num_tokens -= static_cast<int64_t>(request->prompt.size());
    return true;
  });
}

void EngineLoop::SetTime(Clock::time_point now) {
  now_ms_ = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count();
  if (recorder_ != nullptr) recorder_->OnTime(now_ms_);
}

bool EngineLoop::SubmitStep() {
  const Clock::time_point start = Clock::now();
  SetTime(start);
  for (const ExpiredRequest& expired : scheduler_.Expire()) {
    if (recorder_ != nullptr) recorder_->OnFinish(expired.id);
    router_.End(expired.id, FinishReason::kError, Status(expired.code, expired.reason));
  }
  if (!scheduler_.HasWork()) return false;
  Step& step = pipeline_.at(pipeline_.size);
  scheduler_.ScheduleInto(&step.plan);
  if (recorder_ != nullptr) recorder_->OnPlan(step.plan);
  if (step.plan.rows.empty()) {
    FASTLLM_CHECK(pipeline_.size > 0 || !scheduler_.HasWork(), "requests are left and no step can be planned");
    return false;
  }
  for (const NewSequence& sequence : step.plan.added) {
    if (const auto waited = router_.MarkScheduled(sequence.id, start)) channels_->inbox.limit()->Left(*waited, start);
  }
  ReportQueue();
  executor_->Submit(step.plan);
  ++pipeline_.size;
  step.submitted = Clock::now();
  totals_.last_schedule_ns = Nanos(step.submitted - start);
  totals_.schedule_ns += totals_.last_schedule_ns;
  return true;
}

void EngineLoop::CompleteStep() {
  const Clock::time_point before = Clock::now();
  StepResult& result = pipeline_.result;
  executor_->Wait(&result);
  const Clock::time_point now = Clock::now();
  channels_->heartbeat.Beat(now);
  const Step& step = pipeline_.at(0);
  pipeline_.oldest = (pipeline_.oldest + 1) % pipeline_.steps.size();
  --pipeline_.size;
  const bool fits = result.step_id == step.plan.step_id;
  if (recorder_ != nullptr && (!fits || !result.status.ok())) recorder_->OnResult(result);
  if (!result.status.ok()) throw InternalError(result.status.ToString());
  FASTLLM_CHECK(fits,
                "result of step " + std::to_string(result.step_id) + ", expected " + std::to_string(step.plan.step_id));
  Apply(step.plan, now);
  EngineStats& t = totals_;
  ++t.steps;
  t.wait_ns += Nanos(now - before);
  t.last_execute_ns = Nanos(now - std::max(step.submitted, last_completed_));
  t.execute_ns += t.last_execute_ns;
  t.last_update_ns = Nanos(Clock::now() - now);
  t.update_ns += t.last_update_ns;
  t.last_step_requests = static_cast<int64_t>(step.plan.rows.size());
  t.last_step_tokens = step.plan.total_tokens;
  last_completed_ = now;
}

void EngineLoop::Apply(const StepPlan& plan, Clock::time_point now) {
  StepResult& result = pipeline_.result;
  for (const SampledRow& row : result.rows) {
    for (const TokenId token : row.tokens) {
      if (token >= 0) continue;
      // The row had NaN or nothing finite; the others of the batch are sound. Update() skips what Finish() removed.
      std::string why = row.error.empty() ? "model produced no finite logits" : row.error;
      if (router_.End(row.id, FinishReason::kError, Status::Internal(std::move(why)))) Forget(row.id);
      break;
    }
  }
  if (recorder_ != nullptr) recorder_->OnResult(result);
  for (PromptLogprobs& logprobs : result.prompt_logprobs) router_.AddPromptLogprobs(std::move(logprobs));
  scheduler_.UpdateInto(plan, result, &pipeline_.updates);
  for (const SequenceUpdate& update : pipeline_.updates) {
    if (router_.Route(update, &result.rows[update.result_row].logprobs, now)) Forget(update.id);
  }
}

void EngineLoop::ReportQueue() {
  const SchedulerStats s = scheduler_.stats();
  channels_->inbox.limit()->Report(s.waiting + static_cast<int64_t>(held_.requests.size()),
                                   s.queued_tokens + held_.num_tokens);
}

// Statistics first: who has seen a request end also sees its blocks free.
void EngineLoop::Publish() {
  const SchedulerStats s = scheduler_.stats();
  EngineStats out = totals_;
  out.running = s.running;
  out.waiting_paused = static_cast<int64_t>(held_.requests.size());
  out.waiting_preempted = s.waiting_preempted;
  out.waiting = s.waiting + out.waiting_paused;
  out.queued_tokens = s.queued_tokens + held_.num_tokens;
  out.used_blocks = s.used_blocks;
  out.preemptions = s.preemptions;
  out.prefix_query_tokens = s.prefix_query_tokens;
  out.prefix_hit_tokens = s.prefix_hit_tokens;
  out.scheduled_tokens = s.scheduled_tokens;
  const RequestTotals& requests = router_.totals();
  out.prompt_tokens = requests.prompt_tokens;
  out.generation_tokens = requests.generation_tokens;
  out.finished_requests = requests.finished;
  const auto finished_by = [&requests](FinishReason reason) {
    return requests.finished_by[static_cast<size_t>(reason)];
  };
  out.finished_stop = finished_by(FinishReason::kStop);
  out.finished_length = finished_by(FinishReason::kLength);
  out.finished_abort = finished_by(FinishReason::kAbort);
  out.finished_error = finished_by(FinishReason::kError);
  out.heartbeat = channels_->heartbeat.count();
  out.paused = admission_ != Admission::kOpen ? 1 : 0;
  out.asleep = admission_ == Admission::kAsleep ? 1 : 0;
  channels_->stats.Store(out);
  ReportQueue();
  router_.Publish(&channels_->outbox);
}

void EngineLoop::Poison(const std::string& why) noexcept {
  try {
    const Status status = Status::Unavailable("engine failed: " + why);
    channels_->inbox.Close(status);
    recorder_.reset();  // what led here is on the disk before anybody is told
    router_.EndAll(FinishReason::kError, status);
    Inbox::Batch rest = channels_->inbox.Take(/*wait=*/false);
    for (const auto& request : rest.adds) {
      if (router_.Add(request, Clock::now())) router_.End(request->id, FinishReason::kError, status);
    }
    for (Control& control : rest.controls) controls_.quiet.push_back(std::move(control));
    router_.Publish(&channels_->outbox);
    AnswerAll(status);
  } catch (...) {
    // Out of memory while reporting: nothing more can be said, but nobody is left waiting, and the host's process
    // lives.
    channels_->inbox.Close(Status(StatusCode::kUnavailable, ""));
    channels_->inbox.Drop();
    controls_.answered.clear();
    controls_.quiet.clear();
  }
}

}  // namespace fastllm
