#include "core/engine/engine_core.h"

#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "core/base/check.h"
#include "core/engine/channels.h"
#include "core/engine/engine_loop.h"

namespace fastllm {

struct EngineCore::Impl {
  Impl(const SchedConfig& sched, const KvConfig& kv, std::unique_ptr<Executor> executor,
       std::shared_ptr<const TokenTable> tokens, EngineCoreOptions options)
      : has_tokens(tokens != nullptr),
        capacity_tokens(int64_t{kv.num_blocks - 1} * kv.block_size),
        stall_timeout(options.stall_timeout),
        channels(sched),
        loop(sched, kv, std::move(executor), std::move(tokens), std::move(options.recorder), &channels) {}

  const bool has_tokens;
  const int64_t capacity_tokens;
  const std::chrono::milliseconds stall_timeout;
  EngineChannels channels;
  EngineLoop loop;
  std::mutex kv_events_mutex;
  std::once_flag stopped;
  std::thread thread;
};

EngineCore::EngineCore(const SchedConfig& sched, const KvConfig& kv, std::unique_ptr<Executor> executor,
                       std::shared_ptr<const TokenTable> tokens, EngineCoreOptions options) {
  if (tokens != nullptr) {
    const Status status = ValidateTokenTable(*tokens);
    FASTLLM_CHECK(status.ok(), status.message());
  }
  impl_ = std::make_unique<Impl>(sched, kv, std::move(executor), std::move(tokens), std::move(options));
  impl_->thread = std::thread([loop = &impl_->loop] { loop->Run(); });
}

EngineCore::~EngineCore() { Shutdown(); }

Status EngineCore::Check(const Request& request) const {
  if (!request.sampling.stop.empty() && !impl_->has_tokens) {
    return Status::InvalidArgument("stop strings need a token table, and this engine was made without one");
  }
  // The last output token is never fed back, so it takes no place in the KV cache.
  const int64_t need = static_cast<int64_t>(request.prompt.size()) + request.max_tokens - 1;
  if (need > impl_->capacity_tokens) {
    return Status::InvalidArgument("prompt + max_tokens - 1 must be at most " + std::to_string(impl_->capacity_tokens) +
                                   ", the tokens that the KV cache holds, got " + std::to_string(need));
  }
  return Status::Ok();
}

Status EngineCore::Add(std::shared_ptr<const Request> request) {
  FASTLLM_RETURN_IF_ERROR(Check(*request));
  return impl_->channels.inbox.Add(std::move(request));
}

Status EngineCore::AddAll(std::vector<std::shared_ptr<const Request>> requests) {
  for (const auto& request : requests) FASTLLM_RETURN_IF_ERROR(Check(*request));
  return impl_->channels.inbox.AddAll(std::move(requests));
}

void EngineCore::Abort(RequestId id) { impl_->channels.inbox.Abort(id); }

std::vector<RequestDelta> EngineCore::Drain(std::chrono::milliseconds timeout) {
  std::vector<RequestDelta> deltas;
  impl_->channels.outbox.Drain(timeout, &deltas);
  return deltas;
}

void EngineCore::DrainInto(std::chrono::milliseconds timeout, std::vector<RequestDelta>* deltas) {
  impl_->channels.outbox.Drain(timeout, deltas);
}

KvEventBatch EngineCore::DrainKvEvents(size_t most) {
  KvEventBatch batch;
  KvEventRing* ring = impl_->loop.kv_events();
  if (ring == nullptr) return batch;
  std::lock_guard lock(impl_->kv_events_mutex);  // among readers; the engine thread does not know it
  ring->Drain(most, &batch.events);
  batch.num_lost = ring->num_lost();
  return batch;
}

int EngineCore::event_fd() const { return impl_->channels.outbox.event_fd(); }

EngineStats EngineCore::stats() const { return impl_->channels.stats.Load(); }

Status EngineCore::health() const {
  Status status = impl_->channels.inbox.status();
  if (!status.ok() || impl_->stall_timeout.count() <= 0) return status;
  const auto silence = impl_->channels.heartbeat.SinceLast(Heartbeat::Clock::now());
  if (silence <= impl_->stall_timeout) return status;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(silence).count();
  const EngineStats s = stats();
  return Status::Unavailable("engine stalled: no heartbeat for " + std::to_string(seconds) + " s with " +
                             std::to_string(s.running) + " requests running and " + std::to_string(s.waiting) +
                             " waiting; the limit is " + std::to_string(impl_->stall_timeout.count()) + " ms");
}

Result<int32_t> EngineCore::Ask(Control control) {
  std::future<Result<int32_t>> answer = impl_->channels.inbox.Post(std::move(control));
  try {
    return answer.get();
  } catch (const std::future_error&) {
    return Status::Unavailable("engine failed before it answered");
  }
}

Status EngineCore::Pause(PauseMode mode) {
  Control control;
  control.kind = Control::Kind::kPause;
  control.mode = mode;
  return Call(std::move(control));
}

Status EngineCore::Resume() {
  Control control;
  control.kind = Control::Kind::kResume;
  return Call(std::move(control));
}

Status EngineCore::Sleep(int32_t level) {
  Control control;
  control.kind = Control::Kind::kSleep;
  control.level = level;
  return Call(std::move(control));
}

Status EngineCore::Wake(std::vector<std::string> tags) {
  Control control;
  control.kind = Control::Kind::kWake;
  control.tags = std::move(tags);
  return Call(std::move(control));
}

Status EngineCore::ResetPrefixCache() {
  Control control;
  control.kind = Control::Kind::kResetPrefixCache;
  return Call(std::move(control));
}

Result<int32_t> EngineCore::CountCachedTokens(std::vector<TokenId> tokens, ExtraKeys keys) {
  Control control;
  control.kind = Control::Kind::kCountCached;
  control.prefix = {std::move(tokens), std::move(keys), 0, 0};
  return Ask(std::move(control));
}

Result<int32_t> EngineCore::PinPrefix(std::vector<TokenId> tokens, ExtraKeys keys, int32_t priority, int64_t ttl_ms) {
  Control control;
  control.kind = Control::Kind::kPin;
  control.prefix = {std::move(tokens), std::move(keys), priority, ttl_ms};
  return Ask(std::move(control));
}

bool EngineCore::DrainAndShutdown(std::chrono::milliseconds timeout) {
  impl_->channels.inbox.Refuse(Status::Unavailable("engine is draining"));
  Control control;
  control.kind = Control::Kind::kDrain;
  std::future<Result<int32_t>> answer = impl_->channels.inbox.Post(std::move(control));
  const bool answered = answer.wait_for(timeout) == std::future_status::ready;
  Shutdown();
  try {
    return answered && answer.get().ok();
  } catch (const std::future_error&) {
    return false;
  }
}

void EngineCore::Shutdown() {
  std::call_once(impl_->stopped, [this] {
    impl_->channels.inbox.Close(Status::Unavailable("engine is shut down"));
    impl_->thread.join();
  });
}

}  // namespace fastllm
