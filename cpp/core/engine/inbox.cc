#include "core/engine/inbox.h"

#include <iterator>
#include <utility>

namespace fastllm {

Status Inbox::Add(std::shared_ptr<const Request> request) {
  {
    std::lock_guard lock(mutex_);
    if (!why_.ok()) return why_;
    const auto num_tokens = static_cast<int64_t>(request->prompt.size());
    FASTLLM_RETURN_IF_ERROR(limit_.Check(num_tokens, static_cast<int64_t>(batch_.adds.size()), num_tokens_));
    batch_.adds.push_back(std::move(request));
    num_tokens_ += num_tokens;
  }
  filled_.notify_one();
  return Status::Ok();
}

Status Inbox::AddAll(std::vector<std::shared_ptr<const Request>> requests) {
  {
    std::lock_guard lock(mutex_);
    if (!why_.ok()) return why_;
    int64_t num_tokens = 0;
    for (const auto& request : requests) num_tokens += static_cast<int64_t>(request->prompt.size());
    // As with one that is longer than the limit: an empty queue takes what would not fit later either.
    if (!batch_.adds.empty() || limit_.num_reqs() > 0) {
      const auto num_before_last = static_cast<int64_t>(batch_.adds.size() + requests.size()) - 1;
      FASTLLM_RETURN_IF_ERROR(limit_.Check(num_tokens, num_before_last, num_tokens_));
    }
    batch_.adds.insert(batch_.adds.end(), std::make_move_iterator(requests.begin()),
                       std::make_move_iterator(requests.end()));
    num_tokens_ += num_tokens;
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

std::future<Result<int32_t>> Inbox::Post(Control control) {
  std::future<Result<int32_t>> answer = control.answer.get_future();
  {
    std::lock_guard lock(mutex_);
    if (batch_.closed) {
      control.Done(why_);
      return answer;
    }
    batch_.controls.push_back(std::move(control));
  }
  filled_.notify_one();
  return answer;
}

void Inbox::Refuse(Status why) {
  std::lock_guard lock(mutex_);
  if (why_.ok()) why_ = std::move(why);
}

void Inbox::Close(Status why) {
  {
    std::lock_guard lock(mutex_);
    if (batch_.closed) return;
    batch_.closed = true;
    why_ = std::move(why);
  }
  filled_.notify_one();
}

Inbox::Batch Inbox::Take(bool wait) {
  std::unique_lock lock(mutex_);
  if (wait) filled_.wait(lock, [this] { return !batch_.empty(); });
  Batch taken;
  std::swap(taken.adds, batch_.adds);
  limit_.Report(limit_.num_reqs() + static_cast<int64_t>(taken.adds.size()),
                limit_.num_tokens() + std::exchange(num_tokens_, 0));
  std::swap(taken.aborts, batch_.aborts);
  std::swap(taken.controls, batch_.controls);
  taken.closed = batch_.closed;
  return taken;
}

void Inbox::Drop() noexcept {
  std::lock_guard lock(mutex_);
  batch_.adds.clear();
  batch_.controls.clear();
}

Status Inbox::status() const {
  std::lock_guard lock(mutex_);
  return why_;
}

}  // namespace fastllm
