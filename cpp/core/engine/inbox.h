// Inbox: what other threads ask of the engine thread.
#pragma once

#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <vector>

#include "core/base/ids.h"
#include "core/engine/control.h"
#include "core/engine/queue_limit.h"
#include "core/request/request.h"
#include "fastllm/status.h"

namespace fastllm {

class Inbox {
 public:
  struct Batch {
    std::vector<std::shared_ptr<const Request>> adds;
    std::vector<RequestId> aborts;  // to be applied after the adds
    std::vector<Control> controls;  // after both
    bool closed = false;            // no batch after this one

    bool empty() const { return !closed && adds.empty() && aborts.empty() && controls.empty(); }
  };

  // max_reqs, max_tokens: of requests that wait here and with the engine thread; 0: no limit.
  explicit Inbox(int64_t max_reqs = 0, int64_t max_tokens = 0) : limit_(max_reqs, max_tokens) {}

  // From any thread. kResourceExhausted when the queue is full; after Refuse() or Close() the Status it was given.
  Status Add(std::shared_ptr<const Request> request);
  // The same for the outputs of one request: all of them or none.
  Status AddAll(std::vector<std::shared_ptr<const Request>> requests);
  // From any thread. Ignored after Close().
  void Abort(RequestId id);
  // From any thread. The answer; after Close() it is there at once.
  std::future<Result<int32_t>> Post(Control control);

  // Refuses adds from now on with `why`; the rest goes on. From any thread.
  void Refuse(Status why);
  // Refuses everything from now on with `why` (the first call wins) and wakes the engine thread. From any thread.
  void Close(Status why);

  // Takes all that is there; with `wait`, sleeps until there is something or Close(). Engine thread only.
  Batch Take(bool wait);

  // Breaks the promises of the controls that wait here and lets go of the requests; for an engine thread that has no
  // memory to do better. Engine thread, after Close().
  void Drop() noexcept;

  // What waits behind the inbox; for the engine thread to report to. Take() counts what it hands over.
  QueueLimit* limit() { return &limit_; }

  // kOk while open, then what Refuse() or Close() was given. From any thread.
  Status status() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable filled_;
  Batch batch_;
  int64_t num_tokens_ = 0;  // of batch_.adds
  Status why_;
  QueueLimit limit_;
};

}  // namespace fastllm
