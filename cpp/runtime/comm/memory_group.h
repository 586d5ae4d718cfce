// MemoryGroup: where the ranks of one group of a MemoryHub meet. Only for the sources of the hub.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "fastllm/status.h"
#include "runtime/comm/comm_call.h"
#include "runtime/comm/communicator.h"

namespace fastllm::runtime {

// A call has two meetings: after the first everybody's data may be read and written, after the second nobody's is.
// The second cannot fail: whoever passed the first comes to it, so no rank leaves while another uses its memory.
class MemoryGroup {
 public:
  // Told of a member that was not there in time (by its number): breaks this group and those around it.
  using Blame = std::function<void(int32_t missing, std::chrono::milliseconds timeout)>;

  MemoryGroup(int32_t size, std::chrono::milliseconds timeout, Blame blame);

  int32_t size() const { return static_cast<int32_t>(calls_.size()); }

  // For waits that begin later. Any thread.
  void SetTimeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }

  // The first meeting, with its call; the calls of all are in calls() then.
  Status Enter(int32_t rank, const CommCall& call);
  const std::vector<CommCall>& calls() const { return calls_; }
  void Leave(int32_t rank);

  // Messages; at most kMostMessages of a pair wait.
  Status Put(int32_t from, int32_t to, const void* data, size_t bytes);
  // The size of the message, which is in `data` when that is `bytes` and dropped otherwise.
  Result<size_t> Take(int32_t from, int32_t to, void* data, size_t bytes);

  void Break(const Status& why);
  Status broken() const;  // why, or ok

  // Whom a member waits for in here; nullopt: for nobody. Any thread.
  std::optional<int32_t> WaitsFor(int32_t rank) const;

 private:
  static constexpr size_t kMostMessages = 64;
  static constexpr int32_t kNobody = -1;
  static constexpr int32_t kMeeting = -2;

  using Lock = std::unique_lock<std::mutex>;
  struct Mailbox {
    std::deque<std::vector<char>> waiting;
    std::vector<std::vector<char>> unused;
  };

  // Arrives and waits for the others. With `sure` neither time nor Break() end the wait.
  Status Meet(int32_t rank, bool sure);
  // Waits for `done` until the time is up, then blames who is waited for.
  Status Await(Lock& lock, int32_t rank, int32_t waits_for, const std::function<bool()>& done);
  int32_t Missing() const;  // lowest number that has not arrived
  Mailbox& Box(int32_t from, int32_t to) { return boxes_[static_cast<size_t>(from) * calls_.size() + to]; }

  std::atomic<std::chrono::milliseconds> timeout_;
  const Blame blame_;
  const int32_t spins_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Status broken_;
  std::vector<CommCall> calls_;
  std::vector<bool> arrived_;
  int32_t num_arrived_ = 0;
  std::atomic<uint32_t> round_{0};  // meetings that all have come to
  std::vector<int32_t> waits_for_;  // by member: another, kMeeting or kNobody
  std::vector<Mailbox> boxes_;
};

}  // namespace fastllm::runtime
