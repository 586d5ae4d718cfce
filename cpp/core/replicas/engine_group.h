// EngineGroup: several engines of one model behind one Engine (data parallel).
#pragma once

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/engine/outbox.h"
#include "core/replicas/prefix_router.h"
#include "fastllm/engine.h"

namespace fastllm {

struct EngineGroupOptions {
  int32_t num_replicas = 2;  // at most 64
  double balance = 1.25;     // see RouterOptions
  bool by_prefix = true;
  bool prefix_caching = true;
  // How often replicas are looked at, and how long after a failure one is made anew; the time doubles with each failure
  // in a row, up to the last, and starts anew when a request has been answered.
  std::chrono::milliseconds watch_interval{500};
  std::chrono::milliseconds first_restart{500};
  std::chrono::milliseconds longest_wait{60000};
};

// The replica of a handle that a group has returned; 0 for those of a single engine.
constexpr int32_t ReplicaOfHandle(uint64_t handle) { return static_cast<int32_t>(handle >> 56); }

// Each replica has its engine with its own threads, and one thread here that carries its news into the outbox of the
// group, under handles that name the replica and which life of it they are of. One more thread looks after replicas:
// one that has died or stands still loses its requests, each with an error, and is made anew in place.
//
// Calls that concern all (Pause, Sleep, ResetPrefixCache, ...) go to one replica after another and return the first
// error. CountCachedTokens() and PinPrefix() give the most of any replica. stats() are sums.
class EngineGroup final : public Engine {
 public:
  // Makes one replica; called once for each in turn, and again from another thread for one that is made anew.
  using Factory = std::function<Result<std::unique_ptr<Engine>>(int32_t replica)>;

  // The error of the first replica that cannot be made, which it names.
  static Result<std::unique_ptr<Engine>> Create(Factory factory, const EngineGroupOptions& options);
  ~EngineGroup() override;

  Result<uint64_t> Submit(GenerationRequest request) override;
  Status Validate(const GenerationRequest& request) const override;
  void Abort(uint64_t request_id) override;
  std::vector<RequestDelta> Drain(std::chrono::milliseconds timeout) override;
  void DrainInto(std::chrono::milliseconds timeout, std::vector<RequestDelta>* deltas) override;
  int event_fd() const override { return outbox_.event_fd(); }
  const EngineInfo& info() const override { return info_; }
  EngineStats stats() const override;
  Status health() const override;  // kOk while one replica serves
  Status Pause(PauseMode mode) override;
  Status Resume() override;
  Status Sleep(int32_t level) override;
  Status Wake(const std::vector<std::string>& tags) override;
  Status ResetPrefixCache() override;
  Result<int32_t> CountCachedTokens(std::vector<int32_t> prompt_token_ids, ExtraKeys extra_keys) override;
  Result<int32_t> PinPrefix(std::vector<int32_t> prompt_token_ids, ExtraKeys extra_keys, int32_t priority,
                            int64_t ttl_ms) override;
  KvEventBatch DrainKvEvents(size_t most) override;
  bool DrainAndShutdown(std::chrono::milliseconds timeout) override;
  void Shutdown() override;
  Status AwaitServing(std::chrono::milliseconds timeout) override;
  std::vector<ReplicaInfo> replicas() const override;
  Status DrainReplica(int32_t replica) override;
  Status ResumeReplica(int32_t replica) override;
  Status RestartReplica(int32_t replica) override;

 private:
  struct Life;     // one engine in the place of a replica
  struct Replica;  // the place

  EngineGroup(Factory factory, const EngineGroupOptions& options, std::vector<std::unique_ptr<Engine>> engines);

  std::vector<std::shared_ptr<Engine>> Engines() const;  // of the replicas that have not failed
  Status ForEach(const std::function<Status(Engine&)>& call) const;
  Result<int32_t> Most(const std::function<Result<int32_t>(Engine&)>& call) const;
  struct Attempt;  // to submit a request
  Result<RouteChoice> Choose(const Attempt& attempt);
  void Sent(const Attempt& attempt, const RouteChoice& choice, uint64_t handle);
  Status Take(int32_t replica, const std::function<Status(Replica&)>& change);  // for the host's calls
  std::string Refusal() const;                                                  // why no replica takes requests

  // engine_group_life.cc; all but Carry(), Watch() and End() under the mutex
  void Begin(Replica* replica, std::unique_ptr<Engine> engine);
  void Carry(Life* life, Engine* engine);  // the body of a life's thread
  void Translate(Life* life, std::vector<RequestDelta>* deltas);
  void Fail(Life* life, const std::string& why);
  void Watch();
  void LookAfter(Replica* replica, std::unique_lock<std::mutex>* lock);
  void Renew(Replica* replica, std::unique_lock<std::mutex>* lock);
  void StopWatch();
  void End();

  const EngineGroupOptions options_;
  const Factory factory_;
  EngineInfo info_;
  Outbox outbox_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;                 // wakes the watch and those who wait for a replica
  std::vector<std::unique_ptr<Replica>> replicas_;  // under mutex_, as are the next two
  PrefixRouter router_;
  bool ending_ = false;
  const pid_t pid_ = getpid();
  std::once_flag ended_;
  std::thread watch_;
};

}  // namespace fastllm
