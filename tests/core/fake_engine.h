// An Engine without a model: tests push its deltas.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/engine/outbox.h"
#include "fastllm/engine.h"

namespace fastllm {

class FakeEngine : public Engine {
 public:
  // News as the engine thread would put it out.
  void Say(std::vector<RequestDelta> deltas) { outbox_.Push(&deltas, &used_); }

  // As a poisoned engine ends: nothing more comes, and Submit() and health() say why. Its owner may destroy it as soon
  // as health() says so, while a test is still in here: that is the last thing done, under the mutex.
  void Fail(const std::string& why) {
    const std::lock_guard lock(mutex_);
    outbox_.Close();
    health_ = Status::Unavailable(why);
  }

  Result<uint64_t> Submit(GenerationRequest request) override {
    if (Status status = health(); !status.ok()) return status;
    submitted.push_back(std::move(request));
    const auto n = static_cast<uint64_t>(submitted.back().sampling.n);
    return std::exchange(next_id_, next_id_ + n);
  }
  Status Validate(const GenerationRequest&) const override { return Status::Ok(); }
  void Abort(uint64_t id) override { aborted.push_back(id); }
  std::vector<RequestDelta> Drain(std::chrono::milliseconds timeout) override {
    std::vector<RequestDelta> deltas;
    outbox_.Drain(timeout, &deltas);
    return deltas;
  }
  void DrainInto(std::chrono::milliseconds timeout, std::vector<RequestDelta>* deltas) override {
    outbox_.Drain(timeout, deltas);
  }
  int event_fd() const override { return outbox_.event_fd(); }
  const EngineInfo& info() const override { return info_; }
  EngineStats stats() const override { return stats_; }
  Status health() const override {
    const std::lock_guard lock(mutex_);
    return health_;
  }
  Status Pause(PauseMode) override { return Status::Ok(); }
  Status Resume() override { return Status::Ok(); }
  Status Sleep(int32_t) override { return Status::Ok(); }
  Status Wake(const std::vector<std::string>&) override { return Status::Ok(); }
  Status ResetPrefixCache() override { return Status::Ok(); }
  Result<int32_t> CountCachedTokens(std::vector<int32_t>, ExtraKeys) override { return 0; }
  Result<int32_t> PinPrefix(std::vector<int32_t>, ExtraKeys, int32_t, int64_t) override { return 0; }
  KvEventBatch DrainKvEvents(size_t) override { return {}; }
  bool DrainAndShutdown(std::chrono::milliseconds) override { return true; }
  void Shutdown() override { Fail("shut down"); }

  std::vector<GenerationRequest> submitted;
  std::vector<uint64_t> aborted;
  EngineInfo info_;
  EngineStats stats_;

 private:
  Outbox outbox_;
  std::vector<RequestDelta> used_;
  mutable std::mutex mutex_;
  Status health_;
  uint64_t next_id_ = 1;
};

}  // namespace fastllm
