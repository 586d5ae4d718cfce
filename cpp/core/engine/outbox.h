// Outbox: deltas on their way from the engine thread to whoever drains them.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "core/base/ids.h"
#include "fastllm/output.h"

namespace fastllm {

// One vector under one mutex. Under the mutex the eventfd is readable exactly when the vector is not empty, so no
// wake-up is lost or left over, whoever drains. The engine thread never waits here for a consumer: news of an output
// that finds older news of it still pending joins them, so there is one delta at most for each output of a request.
class Outbox {
 public:
  Outbox();  // throws std::system_error when the process is out of file descriptors
  ~Outbox();
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;

  // Appends the deltas, or joins them to what is pending; an empty batch does nothing.
  void Push(std::vector<RequestDelta> deltas);

  // All that is pending, waiting up to `timeout` for the first. After Close() it does not wait.
  std::vector<RequestDelta> Drain(std::chrono::milliseconds timeout);

  // Nothing will be pushed any more: wakes all that wait in Drain().
  void Close();

  int event_fd() const { return event_fd_; }

 private:
  void Join(std::vector<RequestDelta> deltas);

  std::mutex mutex_;
  std::condition_variable filled_;
  std::vector<RequestDelta> pending_;
  std::unordered_map<RequestId, size_t> place_;  // in pending_, by the output's own id (see Request::parent_id); made
                                                 // when a second batch finds it filled
  bool closed_ = false;
  int event_fd_ = -1;
};

}  // namespace fastllm
