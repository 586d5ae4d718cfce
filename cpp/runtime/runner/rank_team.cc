#include "runtime/runner/rank_team.h"

#include <utility>

namespace fastllm::runtime {

RankTeam::RankTeam(std::unique_ptr<MemoryHub> hub, int32_t size) : hub_(std::move(hub)), size_(size) {
  for (int32_t rank = 0; rank < size; ++rank) threads_.emplace_back([this, rank] { Serve(rank); });
}

RankTeam::~RankTeam() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& t : threads_) t.join();
}

void RankTeam::Serve(int32_t rank) {
  std::unique_lock lock(mutex_);
  for (uint64_t seen = 0;;) {
    changed_.wait(lock, [&] { return stop_ || round_ != seen; });
    if (stop_) return;
    seen = round_;
    lock.unlock();
    const Status status = (*work_)(rank);
    if (!status.ok()) hub_->Abort(status);
    lock.lock();
    if (!status.ok() && first_error_.ok()) first_error_ = status;
    if (--running_ == 0) changed_.notify_all();
  }
}

Status RankTeam::Run(const std::function<Status(int32_t rank)>& work) {
  std::unique_lock lock(mutex_);
  work_ = &work;
  running_ = size_;
  first_error_ = Status::Ok();
  ++round_;
  changed_.notify_all();
  changed_.wait(lock, [this] { return running_ == 0; });
  return first_error_;
}

}  // namespace fastllm::runtime
