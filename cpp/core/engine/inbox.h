// Inbox: what other threads ask of the engine thread.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "core/base/ids.h"
#include "core/request/request.h"
#include "fastllm/status.h"

namespace fastllm {

class Inbox {
 public:
  struct Batch {
    std::vector<std::shared_ptr<const Request>> adds;
    std::vector<RequestId> aborts;  // to be applied after the adds
    bool closed = false;            // no batch after this one
  };

  // From any thread. After Close(): the Status it was given.
  Status Add(std::shared_ptr<const Request> request);
  // From any thread. Ignored after Close().
  void Abort(RequestId id);

  // Refuses everything from now on with `why` (the first call wins) and wakes the engine thread. From any thread.
  void Close(Status why);

  // Takes all that is there; with `wait`, sleeps until there is something or Close(). Engine thread only.
  Batch Take(bool wait);

  // kOk while open, then what Close() was given. From any thread.
  Status status() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable filled_;
  Batch batch_;
  Status closed_why_;
};

}  // namespace fastllm
