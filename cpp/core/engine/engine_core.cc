#include "core/engine/engine_core.h"

#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "core/base/check.h"
#include "core/engine/engine_loop.h"
#include "core/engine/inbox.h"
#include "core/engine/outbox.h"
#include "core/engine/stats_cell.h"

namespace fastllm {

struct EngineCore::Impl {
  Impl(const SchedConfig& sched, const KvConfig& kv, std::unique_ptr<Executor> executor,
       std::shared_ptr<const TokenTable> tokens)
      : has_tokens(tokens != nullptr),
        capacity_tokens(int64_t{kv.num_blocks - 1} * kv.block_size),
        loop(sched, kv, std::move(executor), std::move(tokens), &inbox, &outbox, &stats) {}

  const bool has_tokens;
  const int64_t capacity_tokens;
  Inbox inbox;
  Outbox outbox;
  StatsCell stats;
  EngineLoop loop;
  std::once_flag stopped;
  std::thread thread;
};

EngineCore::EngineCore(const SchedConfig& sched, const KvConfig& kv, std::unique_ptr<Executor> executor,
                       std::shared_ptr<const TokenTable> tokens) {
  if (tokens != nullptr) {
    const Status status = ValidateTokenTable(*tokens);
    FASTLLM_CHECK(status.ok(), status.message());
  }
  impl_ = std::make_unique<Impl>(sched, kv, std::move(executor), std::move(tokens));
  impl_->thread = std::thread([loop = &impl_->loop] { loop->Run(); });
}

EngineCore::~EngineCore() { Shutdown(); }

Status EngineCore::Add(std::shared_ptr<const Request> request) {
  if (!request->sampling.stop.empty() && !impl_->has_tokens) {
    return Status::InvalidArgument("stop strings need a token table, and this engine was made without one");
  }
  // The last output token is never fed back, so it takes no place in the KV cache.
  const int64_t need = static_cast<int64_t>(request->prompt.size()) + request->max_tokens - 1;
  if (need > impl_->capacity_tokens) {
    return Status::InvalidArgument("prompt + max_tokens - 1 must be at most " + std::to_string(impl_->capacity_tokens) +
                                   ", the tokens that the KV cache holds, got " + std::to_string(need));
  }
  return impl_->inbox.Add(std::move(request));
}

void EngineCore::Abort(RequestId id) { impl_->inbox.Abort(id); }

std::vector<RequestDelta> EngineCore::Drain(std::chrono::milliseconds timeout) { return impl_->outbox.Drain(timeout); }

int EngineCore::event_fd() const { return impl_->outbox.event_fd(); }

EngineStats EngineCore::stats() const { return impl_->stats.Load(); }

Status EngineCore::health() const { return impl_->inbox.status(); }

void EngineCore::Shutdown() {
  std::call_once(impl_->stopped, [this] {
    impl_->inbox.Close(Status::Unavailable("engine is shut down"));
    impl_->thread.join();
  });
}

}  // namespace fastllm
