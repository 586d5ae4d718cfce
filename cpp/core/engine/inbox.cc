#include "core/engine/inbox.h"

#include <utility>

namespace fastllm {

Status Inbox::Add(std::shared_ptr<const Request> request) {
  {
    std::lock_guard lock(mutex_);
    if (batch_.closed) return closed_why_;
    batch_.adds.push_back(std::move(request));
  }
  filled_.notify_one();
  return Status::Ok();
}

void Inbox::Abort(RequestId id) {
  {
    std::lock_guard lock(mutex_);
    if (batch_.closed) return;
    batch_.aborts.push_back(id);
  }
  filled_.notify_one();
}

void Inbox::Close(Status why) {
  {
    std::lock_guard lock(mutex_);
    if (batch_.closed) return;
    batch_.closed = true;
    closed_why_ = std::move(why);
  }
  filled_.notify_one();
}

Inbox::Batch Inbox::Take(bool wait) {
  std::unique_lock lock(mutex_);
  if (wait) {
    filled_.wait(lock, [this] { return batch_.closed || !batch_.adds.empty() || !batch_.aborts.empty(); });
  }
  Batch taken;
  std::swap(taken.adds, batch_.adds);
  std::swap(taken.aborts, batch_.aborts);
  taken.closed = batch_.closed;
  return taken;
}

Status Inbox::status() const {
  std::lock_guard lock(mutex_);
  return closed_why_;
}

}  // namespace fastllm
