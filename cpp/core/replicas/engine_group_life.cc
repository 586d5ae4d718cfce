// The lives of replicas: their threads, their news, their failures.
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <future>
#include <system_error>
#include <utility>

#include "core/replicas/replica_life.h"

namespace fastllm {
namespace {

using Clock = std::chrono::steady_clock;

// An engine that has not ended after so long stands still and is left behind.
constexpr std::chrono::seconds kLongestEnd{2};

void Raise(const UniqueFd& fd) {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(fd.get(), &one, sizeof(one));
}

// Its memory is there for the next one when this returns, unless it stands still.
void GiveUp(std::shared_ptr<Engine> engine) {
  auto ended = std::make_shared<std::promise<void>>();
  std::future<void> end = ended->get_future();
  std::thread([engine = std::move(engine), ended]() mutable {
    engine->Shutdown();
    engine.reset();
    ended->set_value();
  }).detach();
  end.wait_for(kLongestEnd);
}

}  // namespace

void EngineGroup::Begin(Replica* replica, std::unique_ptr<Engine> engine) {
  auto life = std::make_shared<Life>();
  life->replica = replica;
  life->tag = static_cast<uint64_t>(replica->number) << 56 | (replica->lives++ & 0xff) << 48;
  life->engine = std::move(engine);
  life->stop = UniqueFd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (life->stop.get() < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
  life->thread = std::thread([this, life = life.get(), engine = life->engine] { Carry(life, engine.get()); });
  replica->life = std::move(life);
  replica->info.state = ReplicaState::kServing;
}

// The life outlives its thread: whoever ends it joins.
void EngineGroup::Carry(Life* life, Engine* engine) {
  pthread_setname_np(pthread_self(), ("fastllm-dp" + std::to_string(life->replica->number)).c_str());
  std::array<pollfd, 2> watched = {pollfd{engine->event_fd(), POLLIN, 0}, pollfd{life->stop.get(), POLLIN, 0}};
  std::vector<RequestDelta> deltas, used;
  for (bool last = false; !last;) {
    if (poll(watched.data(), watched.size(), -1) < 0) continue;  // EINTR
    last = watched[1].revents != 0;
    engine->DrainInto(std::chrono::milliseconds(0), &deltas);
    const std::lock_guard lock(mutex_);
    if (deltas.empty() && !last && !ending_) {
      if (const Status health = engine->health(); !health.ok()) Fail(life, health.message());
    }
    Translate(life, &deltas);
    outbox_.Push(&deltas, &used);
    deltas.swap(used);
  }
}

void EngineGroup::Translate(Life* life, std::vector<RequestDelta>* deltas) {
  if (life->over) return deltas->clear();
  ReplicaInfo& info = life->replica->info;
  for (RequestDelta& delta : *deltas) {
    if (delta.finish_reason != FinishReason::kNone) {
      info.live -= static_cast<int64_t>(life->live.erase(delta.request_id + static_cast<uint64_t>(delta.index)));
      if (delta.finish_reason != FinishReason::kError) life->replica->failures = 0;  // it works
    }
    delta.request_id |= life->tag;
  }
  if (info.live == 0 && info.state == ReplicaState::kDraining) info.state = ReplicaState::kDrained;
}

void EngineGroup::Fail(Life* life, const std::string& why) {
  if (std::exchange(life->over, true)) return;
  Replica& replica = *life->replica;
  std::vector<RequestDelta> deltas, used;
  for (const auto& [id, handle] : life->live) {
    RequestDelta& delta = deltas.emplace_back();
    delta.request_id = handle | life->tag;
    delta.index = static_cast<int32_t>(id - handle);
    delta.finish_reason = FinishReason::kError;
    delta.error = "replica " + std::to_string(replica.number) + " failed: " + why;
    delta.error_code = StatusCode::kUnavailable;
  }
  life->live.clear();
  outbox_.Push(&deltas, &used);
  replica.info.live = 0;
  replica.info.state = ReplicaState::kFailed;
  replica.info.reason = why;
  const int32_t doubled = std::min(replica.failures++, 20);
  replica.due = Clock::now() + std::min(options_.longest_wait, options_.first_restart * (int64_t{1} << doubled));
  changed_.notify_all();
}

void EngineGroup::Watch() {
  pthread_setname_np(pthread_self(), "fastllm-watch");
  std::unique_lock lock(mutex_);
  while (!ending_) {
    for (const auto& replica : replicas_) {
      if (!ending_) LookAfter(replica.get(), &lock);
    }
    Clock::time_point next = Clock::now() + options_.watch_interval;
    for (const auto& replica : replicas_) {
      if (!replica->IsUp()) next = std::min(next, replica->due);
    }
    if (!ending_) changed_.wait_until(lock, next);
  }
}

void EngineGroup::LookAfter(Replica* replica, std::unique_lock<std::mutex>* lock) {
  const Clock::time_point now = Clock::now();
  if (!replica->IsUp()) {
    if (now >= replica->due) Renew(replica, lock);
    return;
  }
  const Status health = replica->life->engine->health();
  if (!health.ok()) return Fail(replica->life.get(), health.message());
  if (now - replica->due > options_.longest_wait) replica->failures = 0;
}

void EngineGroup::Renew(Replica* replica, std::unique_lock<std::mutex>* lock) {
  const std::shared_ptr<Life> old = replica->life;
  std::shared_ptr<Engine> engine = std::move(old->engine);
  if (engine != nullptr) AddCounts(engine->stats(), &replica->info.stats);
  lock->unlock();
  if (engine != nullptr) {
    Raise(old->stop);
    old->thread.join();
    GiveUp(std::move(engine));
  }
  Result<std::unique_ptr<Engine>> made = factory_(replica->number);
  lock->lock();
  if (ending_) return;
  replica->due = Clock::now();
  if (!made.ok()) {
    replica->info.state = ReplicaState::kFailed;
    replica->info.reason = made.status().message();
    const int32_t doubled = std::min(replica->failures++, 20);
    replica->due += std::min(options_.longest_wait, options_.first_restart * (int64_t{1} << doubled));
    return;
  }
  ++replica->info.restarts;
  router_.Forget(replica->number);
  Begin(replica, std::move(made).value());
  changed_.notify_all();
}

// A replica that has failed a moment ago, and of which nobody has heard yet, does not count.
Status EngineGroup::AwaitServing(std::chrono::milliseconds timeout) {
  const auto serves = [](const std::unique_ptr<Replica>& replica) {
    return replica->info.state == ReplicaState::kServing && replica->life->engine->health().ok();
  };
  std::unique_lock lock(mutex_);
  const bool in_time =
      changed_.wait_for(lock, timeout, [&] { return ending_ || std::ranges::any_of(replicas_, serves); });
  if (ending_) return Status::Unavailable("the engine has been shut down");
  if (in_time) return Status::Ok();
  return Status(StatusCode::kDeadlineExceeded, Refusal() + "; waited for " + std::to_string(timeout.count()) + " ms");
}

void EngineGroup::StopWatch() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (watch_.joinable()) watch_.join();
}

// Lives do not change any more.
void EngineGroup::End() {
  for (const auto& replica : replicas_) {
    Life& life = *replica->life;
    if (life.engine != nullptr) life.engine->Shutdown();
    if (!life.thread.joinable()) continue;
    Raise(life.stop);
    life.thread.join();
  }
  outbox_.Close();
}

}  // namespace fastllm
