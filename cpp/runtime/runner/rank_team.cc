#include "runtime/runner/rank_team.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <string>
#include <utility>

namespace fastllm::runtime {

struct RankTeam::Shared {
  explicit Shared(std::unique_ptr<MemoryHub> hub_of_all, int32_t size)
      : hub(std::move(hub_of_all)), busy(size, false) {}

  // The first counts, and wakes all who wait.
  void Fail(const Status& why) {
    std::vector<std::shared_ptr<Communicator>> own;
    {
      const std::lock_guard lock(mutex);
      if (first_error.ok()) first_error = why;
      own = announced;
    }
    hub->Abort(why);
    for (const auto& communicator : own) communicator->Abort(why);
  }
  bool AllBack() const { return std::ranges::find(busy, true) == busy.end(); }

  const std::unique_ptr<MemoryHub> hub;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::shared_ptr<Communicator>> announced;
  std::shared_ptr<const std::function<Status(int32_t)>> work;
  std::vector<bool> busy;  // by rank
  uint64_t round = 0;
  bool stop = false;
  Status first_error;  // of the round
};

RankTeam::RankTeam(std::unique_ptr<MemoryHub> hub, int32_t size)
    : shared_(std::make_shared<Shared>(std::move(hub), size)) {
  for (int32_t rank = 0; rank < size; ++rank) {
    threads_.emplace_back([shared = shared_, rank] { Serve(shared, rank); });
  }
}

RankTeam::~RankTeam() {
  std::unique_lock lock(shared_->mutex);
  shared_->stop = true;
  shared_->changed.notify_all();
  for (size_t rank = 0; rank < threads_.size(); ++rank) {
    if (shared_->busy[rank]) threads_[rank].detach();
  }
  lock.unlock();
  for (std::thread& t : threads_) {
    if (t.joinable()) t.join();
  }
}

const MemoryHub& RankTeam::hub() const { return *shared_->hub; }

AnnounceFn RankTeam::announcer() const {
  return [shared = shared_](const std::shared_ptr<Communicator>& communicator) {
    Status why;
    {
      const std::lock_guard lock(shared->mutex);
      shared->announced.push_back(communicator);
      why = shared->first_error;
    }
    if (!why.ok()) communicator->Abort(why);
  };
}

void RankTeam::Serve(const std::shared_ptr<Shared>& shared, int32_t rank) {
  std::unique_lock lock(shared->mutex);
  for (uint64_t seen = 0;;) {
    shared->changed.wait(lock, [&] { return shared->stop || shared->round != seen; });
    if (shared->stop) return;
    seen = shared->round;
    std::shared_ptr<const std::function<Status(int32_t)>> work = shared->work;
    lock.unlock();
    const Status status = (*work)(rank);
    if (!status.ok()) shared->Fail(status);
    work.reset();
    lock.lock();
    shared->busy[rank] = false;
    shared->changed.notify_all();
  }
}

Status RankTeam::Run(std::function<Status(int32_t rank)> work, std::chrono::milliseconds timeout,
                     std::chrono::milliseconds farewell) {
  std::unique_lock lock(shared_->mutex);
  if (!shared_->AllBack()) return shared_->first_error;
  shared_->work = std::make_shared<const std::function<Status(int32_t)>>(std::move(work));
  shared_->busy.assign(threads_.size(), true);
  shared_->first_error = Status::Ok();
  ++shared_->round;
  shared_->changed.notify_all();
  const auto back = [this] { return shared_->AllBack(); };
  const auto over = [&] { return back() || !shared_->first_error.ok(); };
  if (shared_->changed.wait_for(lock, timeout, over)) {
    shared_->changed.wait_for(lock, farewell, back);
  } else {
    const auto first = [this] {
      return static_cast<int32_t>(std::ranges::find(shared_->busy, true) - shared_->busy.begin());
    };
    const auto late = [&](int32_t rank) {
      return Status(StatusCode::kDeadlineExceeded, shared_->hub->RanksOf(rank).topology.name() +
                                                       " did not come back within " + std::to_string(timeout.count()) +
                                                       " ms");
    };
    const int32_t waiting = first();
    lock.unlock();
    shared_->Fail(late(shared_->hub->Culprit(waiting)));
    lock.lock();
    // Who waits on a device, of which the hub knows nothing, comes back now.
    if (!shared_->changed.wait_for(lock, farewell, back)) shared_->first_error = late(first());
  }
  shared_->work.reset();
  return shared_->first_error;
}

}  // namespace fastllm::runtime
