#include "core/replicas/engine_group.h"

#include <algorithm>
#include <future>
#include <utility>

#include "core/replicas/replica_life.h"

namespace fastllm {
namespace {

constexpr uint64_t kOwnBits = (uint64_t{1} << 48) - 1;  // of a handle: the engine's own

RouterOptions RouterOptionsOf(const EngineGroupOptions& options, const EngineInfo& info) {
  RouterOptions out;
  out.num_replicas = options.num_replicas;
  out.block_size = info.block_size;
  out.blocks = options.prefix_caching ? info.num_kv_blocks : 0;
  out.balance = options.balance;
  out.by_prefix = options.by_prefix;
  return out;
}

std::string Named(int32_t replica, const Status& status) {
  return "replica " + std::to_string(replica) + ": " + status.message();
}

}  // namespace

struct EngineGroup::Attempt {
  const GenerationRequest& request;
  RouteQuery query;
  std::vector<bool> full;  // replicas that have refused it
  Status refusal;          // why
};

Result<std::unique_ptr<Engine>> EngineGroup::Create(Factory factory, const EngineGroupOptions& options) {
  std::vector<std::unique_ptr<Engine>> engines;
  for (int32_t r = 0; r < options.num_replicas; ++r) {
    Result<std::unique_ptr<Engine>> made = factory(r);
    if (!made.ok()) return Status(made.status().code(), Named(r, made.status()));
    engines.push_back(std::move(made).value());
  }
  return std::unique_ptr<Engine>(new EngineGroup(std::move(factory), options, std::move(engines)));
}

EngineGroup::EngineGroup(Factory factory, const EngineGroupOptions& options,
                         std::vector<std::unique_ptr<Engine>> engines)
    : options_(options),
      factory_(std::move(factory)),
      info_(engines.front()->info()),
      router_(RouterOptionsOf(options, info_)) {
  const std::lock_guard lock(mutex_);
  for (std::unique_ptr<Engine>& engine : engines) {
    replicas_.push_back(std::make_unique<Replica>());
    replicas_.back()->number = static_cast<int32_t>(replicas_.size()) - 1;
    Begin(replicas_.back().get(), std::move(engine));
  }
  watch_ = std::thread([this] { Watch(); });
}

EngineGroup::~EngineGroup() {
  if (getpid() == pid_) {
    Shutdown();
    return;
  }
  // A forked child has none of the threads.
  watch_.detach();
  for (const auto& replica : replicas_) {
    if (replica->life->thread.joinable()) replica->life->thread.detach();
  }
}

Result<RouteChoice> EngineGroup::Choose(const Attempt& attempt) {
  const int32_t wanted = attempt.request.data_parallel_rank;
  const auto count = static_cast<int32_t>(replicas_.size());
  if (wanted >= count || wanted < -1) {
    return Status::InvalidArgument("data_parallel_rank must be from 0 to " + std::to_string(count - 1) + ", got " +
                                   std::to_string(wanted));
  }
  std::vector<ReplicaLoad> loads(replicas_.size());
  for (size_t r = 0; r < loads.size(); ++r) {
    const ReplicaInfo& info = replicas_[r]->info;
    const bool named = wanted < 0 || std::cmp_equal(r, wanted);
    loads[r] = {named && info.state == ReplicaState::kServing && !attempt.full[r], info.live};
  }
  const RouteChoice choice = router_.Choose(attempt.query, loads);
  if (choice.replica >= 0) return choice;
  return attempt.refusal.ok() ? Status::Unavailable(Refusal()) : attempt.refusal;
}

std::string EngineGroup::Refusal() const {
  std::string out = "no replica takes the request:";
  for (const auto& replica : replicas_) {
    // One that has died may not have been found yet.
    const Status health = replica->IsUp() ? replica->life->engine->health() : Status::Ok();
    const bool failed = !health.ok() || replica->info.state == ReplicaState::kFailed;
    out += (replica->number == 0 ? " " : ", ") + std::to_string(replica->number) + " is " +
           ReplicaStateName(failed ? ReplicaState::kFailed : replica->info.state);
    if (failed) out += " (" + (health.ok() ? replica->info.reason : health.message()) + ")";
  }
  return out;
}

Result<uint64_t> EngineGroup::Submit(GenerationRequest request) {
  const std::lock_guard lock(mutex_);
  Attempt attempt{request,
                  {request.prompt_token_ids, &request.extra_keys, request.session_id, request.sampling.n},
                  std::vector<bool>(replicas_.size()),
                  {}};
  for (;;) {
    FASTLLM_ASSIGN_OR_RETURN(const RouteChoice choice, Choose(attempt));
    Life& life = *replicas_[static_cast<size_t>(choice.replica)]->life;
    GenerationRequest copy = request;
    copy.data_parallel_rank = -1;
    Result<uint64_t> handle = life.engine->Submit(std::move(copy));
    if (handle.ok()) {
      Sent(attempt, choice, *handle);
      return life.tag | *handle;
    }
    attempt.refusal = handle.status();
    const StatusCode code = attempt.refusal.code();
    if (code == StatusCode::kUnavailable && !ending_) {
      Fail(&life, attempt.refusal.message());
    } else if (code != StatusCode::kResourceExhausted) {
      return attempt.refusal;
    }
    attempt.full[static_cast<size_t>(choice.replica)] = true;
  }
}

void EngineGroup::Sent(const Attempt& attempt, const RouteChoice& choice, uint64_t handle) {
  Replica& replica = *replicas_[static_cast<size_t>(choice.replica)];
  const int32_t n = attempt.request.sampling.n;
  for (int32_t index = 0; index < n; ++index) replica.life->live[handle + static_cast<uint64_t>(index)] = handle;
  replica.info.live += n;
  ++replica.info.requests;
  replica.info.routed_prefix += choice.reason == RouteReason::kPrefix ? 1 : 0;
  replica.info.routed_session += choice.reason == RouteReason::kSession ? 1 : 0;
  router_.Sent(attempt.query, choice.replica);
}

Status EngineGroup::Validate(const GenerationRequest& request) const {
  GenerationRequest copy = request;
  copy.data_parallel_rank = -1;
  const std::vector<std::shared_ptr<Engine>> engines = Engines();
  return engines.empty() ? Status::Ok() : engines.front()->Validate(copy);
}

void EngineGroup::Abort(uint64_t request_id) {
  std::shared_ptr<Engine> engine;
  {
    const std::lock_guard lock(mutex_);
    const auto number = static_cast<size_t>(ReplicaOfHandle(request_id));
    if (number >= replicas_.size() || replicas_[number]->life->tag != (request_id & ~kOwnBits)) return;
    engine = replicas_[number]->life->engine;
  }
  if (engine != nullptr) engine->Abort(request_id & kOwnBits);
}

std::vector<RequestDelta> EngineGroup::Drain(std::chrono::milliseconds timeout) {
  std::vector<RequestDelta> deltas;
  outbox_.Drain(timeout, &deltas);
  return deltas;
}

void EngineGroup::DrainInto(std::chrono::milliseconds timeout, std::vector<RequestDelta>* deltas) {
  outbox_.Drain(timeout, deltas);
}

std::vector<std::shared_ptr<Engine>> EngineGroup::Engines() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Engine>> engines;
  for (const auto& replica : replicas_) {
    if (replica->IsUp()) engines.push_back(replica->life->engine);
  }
  return engines;
}

Status EngineGroup::ForEach(const std::function<Status(Engine&)>& call) const {
  Status first;
  for (const auto& engine : Engines()) {
    Status status = call(*engine);
    if (first.ok()) first = std::move(status);
  }
  return first;
}

Result<int32_t> EngineGroup::Most(const std::function<Result<int32_t>(Engine&)>& call) const {
  int32_t most = 0;
  for (const auto& engine : Engines()) {
    FASTLLM_ASSIGN_OR_RETURN(const int32_t value, call(*engine));
    most = std::max(most, value);
  }
  return most;
}

EngineStats EngineGroup::stats() const {
  EngineStats sum;
  int64_t up = 0, paused = 0, asleep = 0;
  const std::lock_guard lock(mutex_);
  for (const auto& replica : replicas_) {
    const EngineStats stats = replica->Stats();
    AddStats(stats, &sum);
    up += replica->IsUp() ? 1 : 0;
    paused += stats.paused;
    asleep += stats.asleep;
  }
  sum.paused = up > 0 && paused == up ? 1 : 0;
  sum.asleep = up > 0 && asleep == up ? 1 : 0;
  return sum;
}

Status EngineGroup::health() const {
  for (const auto& engine : Engines()) {
    if (engine->health().ok()) return Status::Ok();
  }
  const std::lock_guard lock(mutex_);
  return Status::Unavailable(Refusal());
}

Status EngineGroup::Pause(PauseMode mode) {
  return ForEach([mode](Engine& engine) { return engine.Pause(mode); });
}

Status EngineGroup::Resume() {
  return ForEach([](Engine& engine) { return engine.Resume(); });
}

Status EngineGroup::Sleep(int32_t level) {
  return ForEach([level](Engine& engine) { return engine.Sleep(level); });
}

Status EngineGroup::Wake(const std::vector<std::string>& tags) {
  return ForEach([&tags](Engine& engine) { return engine.Wake(tags); });
}

Status EngineGroup::ResetPrefixCache() {
  FASTLLM_RETURN_IF_ERROR(ForEach([](Engine& engine) { return engine.ResetPrefixCache(); }));
  const std::lock_guard lock(mutex_);
  for (const auto& replica : replicas_) router_.Forget(replica->number);
  return Status::Ok();
}

Result<int32_t> EngineGroup::CountCachedTokens(std::vector<int32_t> prompt_token_ids, ExtraKeys extra_keys) {
  return Most([&](Engine& engine) { return engine.CountCachedTokens(prompt_token_ids, extra_keys); });
}

Result<int32_t> EngineGroup::PinPrefix(std::vector<int32_t> prompt_token_ids, ExtraKeys extra_keys, int32_t priority,
                                       int64_t ttl_ms) {
  return Most([&](Engine& engine) { return engine.PinPrefix(prompt_token_ids, extra_keys, priority, ttl_ms); });
}

// The caches' events are of one sequence each: a group is not made with them.
KvEventBatch EngineGroup::DrainKvEvents(size_t) { return {}; }

bool EngineGroup::DrainAndShutdown(std::chrono::milliseconds timeout) {
  StopWatch();
  std::vector<std::future<bool>> ends;
  for (const auto& engine : Engines()) {
    ends.push_back(std::async(std::launch::async, [engine, timeout] { return engine->DrainAndShutdown(timeout); }));
  }
  bool all = true;
  for (std::future<bool>& end : ends) all &= end.get();
  Shutdown();
  return all;
}

void EngineGroup::Shutdown() {
  if (getpid() != pid_) return;
  std::call_once(ended_, [this] {
    StopWatch();
    End();
  });
}

std::vector<ReplicaInfo> EngineGroup::replicas() const {
  const std::lock_guard lock(mutex_);
  std::vector<ReplicaInfo> out;
  for (const auto& replica : replicas_) {
    out.push_back(replica->info);
    out.back().stats = replica->Stats();
  }
  return out;
}

Status EngineGroup::Take(int32_t replica, const std::function<Status(Replica&)>& change) {
  const std::lock_guard lock(mutex_);
  if (replica < 0 || std::cmp_greater_equal(replica, replicas_.size())) {
    return Status::InvalidArgument("replica must be from 0 to " + std::to_string(replicas_.size() - 1) + ", got " +
                                   std::to_string(replica));
  }
  return change(*replicas_[static_cast<size_t>(replica)]);
}

Status EngineGroup::DrainReplica(int32_t replica) {
  return Take(replica, [](Replica& r) {
    if (!r.IsUp()) return Status::FailedPrecondition("the replica is " + std::string(ReplicaStateName(r.info.state)));
    r.info.state = r.info.live > 0 ? ReplicaState::kDraining : ReplicaState::kDrained;
    return Status::Ok();
  });
}

Status EngineGroup::ResumeReplica(int32_t replica) {
  return Take(replica, [this](Replica& r) {
    if (!r.IsUp()) return Status::FailedPrecondition("the replica is " + std::string(ReplicaStateName(r.info.state)));
    r.info.state = ReplicaState::kServing;
    changed_.notify_all();
    return Status::Ok();
  });
}

Status EngineGroup::RestartReplica(int32_t replica) {
  return Take(replica, [this](Replica& r) {
    if (r.info.state != ReplicaState::kDrained) {
      return Status::FailedPrecondition("the replica is " + std::string(ReplicaStateName(r.info.state)) +
                                        "; drain it first");
    }
    r.life->over = true;
    r.info.state = ReplicaState::kRestarting;
    r.due = std::chrono::steady_clock::now();
    changed_.notify_all();
    return Status::Ok();
  });
}

}  // namespace fastllm
