// CallGate: lets the calls of one thread through until any thread closes it, which never waits for a call.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "fastllm/status.h"

namespace fastllm::runtime {

// For a library whose calls may hang until what they are made on is taken down.
class CallGate {
 public:
  // How long the end waits for a call that is under way, which otherwise would lose what it works on.
  static constexpr std::chrono::seconds kPatience{1};

  explicit CallGate(std::chrono::milliseconds patience = kPatience) : patience_(patience) {}
  // Waits for the end, if there was a Close().
  ~CallGate();
  CallGate(const CallGate&) = delete;
  CallGate& operator=(const CallGate&) = delete;

  // Before a call, on the thread that makes them all. Ok: the call may be made, and Leave() comes after it. Else why
  // the gate is closed.
  Status Enter();
  void Leave();

  // Closes the gate at once, from any thread; the first time counts. `end` takes down what the calls are made on: once,
  // on a thread of its own, when no call is under way, or when one has been for `patience` longer: then it has to be
  // what makes it return.
  void Close(const Status& why, std::function<void()> end);

  // Why it is closed, or ok. Any thread.
  Status closed() const;

 private:
  const std::chrono::milliseconds patience_;
  mutable std::mutex mutex_;  // never held during a call
  std::condition_variable left_;
  bool in_call_ = false;
  Status why_;
  std::thread ending_;
};

}  // namespace fastllm::runtime
