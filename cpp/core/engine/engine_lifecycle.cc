// EngineLoop: pause, resume, sleep, wake, drain. All of it on the engine thread, between two steps.
#include <string>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "core/engine/engine_loop.h"

namespace fastllm {
namespace {

Result<int32_t> Answered(const Status& status) {
  if (status.ok()) return 0;
  return status;
}

}  // namespace

bool EngineLoop::Quiet() const { return pipeline_.size == 0 && (!Planning() || !scheduler_.HasWork()); }

void EngineLoop::Handle(Control control) {
  Status status;
  switch (control.kind) {
    case Control::Kind::kFailed: throw InternalError(control.why.ToString());
    case Control::Kind::kPause: Pause(std::move(control)); return;
    case Control::Kind::kDrain:
      // Nothing could end while it is paused. One that is asleep has no request that holds anything; they are aborted.
      if (admission_ != Admission::kAsleep) status = Resume();
      controls_.quiet.push_back(std::move(control));
      return;
    case Control::Kind::kResume: status = Resume(); break;
    case Control::Kind::kSleep: status = Sleep(control.level); break;
    case Control::Kind::kWake: status = Wake(control.tags); break;
    case Control::Kind::kResetPrefixCache: status = ResetPrefixCache(); break;
    case Control::Kind::kCountCached: {
      const int32_t tokens = scheduler_.CountCachedTokens(control.prefix.tokens, control.prefix.keys);
      controls_.answered.emplace_back(std::move(control), tokens);
      return;
    }
    case Control::Kind::kPin: {
      auto tokens = Pin(control.prefix);
      controls_.answered.emplace_back(std::move(control), std::move(tokens));
      return;
    }
  }
  controls_.answered.emplace_back(std::move(control), Answered(status));
}

void EngineLoop::Pause(Control control) {
  if (admission_ == Admission::kAsleep) {
    controls_.answered.emplace_back(std::move(control), 0);
    return;
  }
  if (control.mode == PauseMode::kAbort) {
    for (const RequestId id : router_.EndAll(FinishReason::kAbort)) Forget(id);
    held_ = {};
  }
  admission_ = control.mode == PauseMode::kKeep ? Admission::kFreeze : Admission::kHold;
  controls_.quiet.push_back(std::move(control));
}

Status EngineLoop::Resume() {
  if (admission_ == Admission::kAsleep) return Status::FailedPrecondition("the engine is asleep: wake it first");
  admission_ = Admission::kOpen;
  for (const auto& request : std::exchange(held_, {}).requests) Schedule(request);
  for (Control& control : std::exchange(controls_.quiet, {})) {
    if (control.kind == Control::Kind::kDrain) {
      controls_.quiet.push_back(std::move(control));
    } else {
      controls_.answered.emplace_back(std::move(control),
                                      Status::FailedPrecondition("the engine was resumed before it was quiet"));
    }
  }
  return Status::Ok();
}

Status EngineLoop::Sleep(int32_t level) {
  if (level != 1 && level != 2) {
    return Status::InvalidArgument("sleep level must be 1 or 2, got " + std::to_string(level));
  }
  if (admission_ == Admission::kAsleep) return Status::Ok();
  if (admission_ == Admission::kOpen || !Quiet()) {
    return Status::FailedPrecondition("only a paused engine that is quiet can sleep: pause it first");
  }
  if (const int32_t used = scheduler_.stats().used_blocks; used > 0) {
    return Status::FailedPrecondition(std::to_string(used) +
                                      " KV blocks are held by requests that were kept: pause with abort or wait");
  }
  FASTLLM_RETURN_IF_ERROR(executor_->Sleep(level));
  admission_ = Admission::kAsleep;
  return ResetPrefixCache();
}

Status EngineLoop::Wake(const std::vector<std::string>& tags) {
  if (admission_ != Admission::kAsleep) return Status::FailedPrecondition("the engine is not asleep");
  FASTLLM_ASSIGN_OR_RETURN(const bool all, executor_->Wake(tags));
  if (all) admission_ = Admission::kFreeze;
  return Status::Ok();
}

Status EngineLoop::ResetPrefixCache() {
  if (recorder_ != nullptr) recorder_->OnResetPrefixCache();
  if (scheduler_.ResetPrefixCache()) return Status::Ok();
  return Status::FailedPrecondition(std::to_string(scheduler_.stats().used_blocks) +
                                    " KV blocks are in use, and prefixes are forgotten only when none is");
}

Result<int32_t> EngineLoop::Pin(const PrefixQuery& prefix) {
  auto tokens = scheduler_.PinPrefix(prefix.tokens, prefix.keys, prefix.priority, prefix.ttl_ms);
  if (recorder_ != nullptr && tokens.ok()) recorder_->OnPin(prefix);
  return tokens;
}

void EngineLoop::Answer() {
  if (!controls_.quiet.empty() && Quiet()) {
    for (Control& control : std::exchange(controls_.quiet, {})) {
      const bool unfinished = control.kind == Control::Kind::kDrain && router_.num_live() > 0;
      control.Done(unfinished ? Status::FailedPrecondition("paused requests are left") : Status::Ok());
    }
  }
  for (auto& [control, answer] : std::exchange(controls_.answered, {})) control.answer.set_value(std::move(answer));
}

void EngineLoop::AnswerAll(const Status& status) {
  for (auto& [control, own] : std::exchange(controls_.answered, {})) control.answer.set_value(std::move(own));
  for (Control& control : std::exchange(controls_.quiet, {})) control.Done(status);
}

}  // namespace fastllm
