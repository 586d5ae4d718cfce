// Outbox: deltas on their way from the engine thread to whoever drains them.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

#include "core/base/ids.h"
#include "fastllm/output.h"

namespace fastllm {

// Where the delta of an output is, by open addressing. Clear() keeps the memory, so a steady load allocates nothing.
class DeltaPlaces {
 public:
  // The place of the id, which becomes `place` when it has none yet. Valid until the next call.
  size_t& FindOrAdd(RequestId id, size_t place);
  void Clear();
  bool empty() const { return size_ == 0; }

 private:
  struct Entry {
    RequestId id = 0;  // 0: empty
    size_t place = 0;
  };
  void Grow();

  std::vector<Entry> entries_;  // a power of two many
  size_t size_ = 0;
};

// One vector under one mutex. Under the mutex the eventfd is readable exactly when the vector is not empty or Close()
// has not been seen yet, so no wake-up is lost or left over, whoever drains. The engine thread never waits here for a
// consumer: news of an output that finds older news of it still pending joins them, so there is one delta at most for
// each output of a request. Deltas that a host gives back are filled again.
class Outbox {
 public:
  Outbox();  // throws std::system_error when the process is out of file descriptors
  ~Outbox();
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;

  // Engine thread. Appends the deltas, or joins them to what is pending; an empty batch does nothing. *deltas is empty
  // afterwards, and used ones that hosts have given back are appended to *used.
  void Push(std::vector<RequestDelta>* deltas, std::vector<RequestDelta>* used);

  // *deltas becomes all that is pending, waiting up to `timeout` for the first; what it held is given back. After
  // Close() it does not wait.
  void Drain(std::chrono::milliseconds timeout, std::vector<RequestDelta>* deltas);

  // Nothing will be pushed any more: wakes all that wait in Drain() or on the eventfd.
  void Close();

  int event_fd() const { return event_fd_; }

 private:
  void Join(std::vector<RequestDelta>* deltas);
  void GiveBack(std::vector<RequestDelta>* deltas);
  void Signal();

  std::mutex mutex_;
  std::condition_variable filled_;
  std::vector<RequestDelta> pending_;
  std::vector<RequestDelta> used_;
  DeltaPlaces places_;  // in pending_, by the output's own id (see Request::parent_id); made when a second batch finds
                        // it filled
  bool closed_ = false;
  bool signalled_ = false;  // the eventfd is readable
  int event_fd_ = -1;
};

}  // namespace fastllm
