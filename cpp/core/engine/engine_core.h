// EngineCore: the engine thread. Inbox (add, abort) -> Schedule() -> executor -> Update() -> text -> outbox.
// Threads, ownership, errors and shutdown: cpp/docs/engine.md.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "core/config/resolved.h"
#include "core/engine/executor.h"
#include "core/request/request.h"
#include "fastllm/engine.h"
#include "fastllm/output.h"
#include "fastllm/status.h"
#include "fastllm/token_table.h"

namespace fastllm {

class EngineCore {
 public:
  // Starts the thread. `tokens` null: no text, and stop strings are refused in Add(). Throws InternalError for values
  // that Resolve() and ValidateTokenTable() refuse, std::system_error when the process is out of threads or
  // descriptors.
  EngineCore(const SchedConfig& sched, const KvConfig& kv, std::unique_ptr<Executor> executor,
             std::shared_ptr<const TokenTable> tokens);
  ~EngineCore();  // Shutdown()

  // All of these from any thread.
  // `request` is validated and its id is in use by no other. Refuses what can never fit in the pool
  // (kInvalidArgument), and everything once the engine is shut down or poisoned (kUnavailable, with the reason).
  Status Add(std::shared_ptr<const Request> request);
  void Abort(RequestId id);
  // As Engine::Drain(); once the engine thread has ended it does not wait.
  std::vector<RequestDelta> Drain(std::chrono::milliseconds timeout);
  int event_fd() const;
  EngineStats stats() const;
  Status health() const;
  void Shutdown();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fastllm
