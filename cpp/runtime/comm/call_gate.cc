#include "runtime/comm/call_gate.h"

#include <utility>

namespace fastllm::runtime {

CallGate::~CallGate() {
  if (ending_.joinable()) ending_.join();
}

Status CallGate::Enter() {
  const std::lock_guard lock(mutex_);
  if (why_.ok()) in_call_ = true;
  return why_;
}

void CallGate::Leave() {
  const std::lock_guard lock(mutex_);
  in_call_ = false;
  left_.notify_all();
}

void CallGate::Close(const Status& why, std::function<void()> end) {
  const std::lock_guard lock(mutex_);
  if (!why_.ok()) return;
  why_ = why;
  ending_ = std::thread([this, end = std::move(end)] {
    {
      std::unique_lock own(mutex_);
      left_.wait_for(own, patience_, [this] { return !in_call_; });
    }
    end();
  });
}

Status CallGate::closed() const {
  const std::lock_guard lock(mutex_);
  return why_;
}

}  // namespace fastllm::runtime
