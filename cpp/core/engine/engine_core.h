// EngineCore: the engine thread. Inbox (add, abort) -> Schedule() -> executor -> Update() -> text -> outbox.
// Threads, ownership, errors and shutdown: cpp/docs/engine.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/config/resolved.h"
#include "core/engine/control.h"
#include "core/engine/executor.h"
#include "core/engine/recorder.h"
#include "core/request/request.h"
#include "fastllm/engine.h"
#include "fastllm/output.h"
#include "fastllm/status.h"
#include "fastllm/token_table.h"

namespace fastllm {

// What an engine can do without.
struct EngineCoreOptions {
  std::chrono::milliseconds stall_timeout{0};  // health(): kUnavailable after so long without a heartbeat; 0: never
  std::unique_ptr<Recorder> recorder;          // opened with the same configuration
};

class EngineCore {
 public:
  // Starts the thread. `tokens` null: no text, and stop strings are refused in Add(). Throws InternalError for values
  // that Resolve() and ValidateTokenTable() refuse, std::system_error when the process is out of threads or
  // descriptors.
  EngineCore(const SchedConfig& sched, const KvConfig& kv, std::unique_ptr<Executor> executor,
             std::shared_ptr<const TokenTable> tokens, EngineCoreOptions options = {});
  ~EngineCore();  // Shutdown()

  // All of these from any thread.
  // `request` is validated and its id is in use by no other. Refuses what can never fit in the pool
  // (kInvalidArgument), and everything once the engine is shut down or poisoned (kUnavailable, with the reason).
  Status Add(std::shared_ptr<const Request> request);
  // The same for the outputs of one request (n > 1; see Request::parent_id): all of them or none.
  Status AddAll(std::vector<std::shared_ptr<const Request>> requests);
  // Ends a request with all of its outputs.
  void Abort(RequestId id);
  // As Engine::Drain(); once the engine thread has ended it does not wait.
  std::vector<RequestDelta> Drain(std::chrono::milliseconds timeout);
  void DrainInto(std::chrono::milliseconds timeout, std::vector<RequestDelta>* deltas);
  KvEventBatch DrainKvEvents(size_t most);
  int event_fd() const;
  EngineStats stats() const;
  Status health() const;
  // As their namesakes in Engine; they wait for the engine thread.
  Status Pause(PauseMode mode);
  Status Resume();
  Status Sleep(int32_t level);
  Status Wake(std::vector<std::string> tags);
  Status ResetPrefixCache();
  Result<int32_t> CountCachedTokens(std::vector<TokenId> tokens, ExtraKeys keys);
  Result<int32_t> PinPrefix(std::vector<TokenId> tokens, ExtraKeys keys, int32_t priority, int64_t ttl_ms);
  bool DrainAndShutdown(std::chrono::milliseconds timeout);
  void Shutdown();

 private:
  struct Impl;
  Status Check(const Request& request) const;
  Result<int32_t> Ask(Control control);
  Status Call(Control control) { return Ask(std::move(control)).status(); }

  std::unique_ptr<Impl> impl_;
};

}  // namespace fastllm
