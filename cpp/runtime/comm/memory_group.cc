#include "runtime/comm/memory_group.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

namespace fastllm::runtime {
namespace {

// Ranks that each have a core meet within microseconds; sleeping and waking takes tens of them. A few hundred pauses of
// the x86 kind are about as long. No yielding: on a busy machine that gives the core away for milliseconds.
int32_t SpinsFor(int32_t size) { return std::cmp_less_equal(size, std::thread::hardware_concurrency()) ? 500 : 0; }

void Pause() {
#if defined(__x86_64__) || defined(_M_X64)
  __builtin_ia32_pause();
#else
  std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace

MemoryGroup::MemoryGroup(int32_t size, std::chrono::milliseconds timeout, Blame blame)
    : timeout_(timeout),
      blame_(std::move(blame)),
      spins_(SpinsFor(size)),
      calls_(size),
      arrived_(size, false),
      waits_for_(size, kNobody),
      boxes_(static_cast<size_t>(size) * size) {}

int32_t MemoryGroup::Missing() const {
  return static_cast<int32_t>(std::find(arrived_.begin(), arrived_.end(), false) - arrived_.begin());
}

std::optional<int32_t> MemoryGroup::WaitsFor(int32_t rank) const {
  const std::lock_guard lock(mutex_);
  const int32_t other = waits_for_[rank];
  if (other == kNobody) return std::nullopt;
  return other == kMeeting ? Missing() : other;
}

Status MemoryGroup::Await(Lock& lock, int32_t rank, int32_t waits_for, const std::function<bool()>& done) {
  waits_for_[rank] = waits_for;
  const std::chrono::milliseconds timeout = timeout_;
  const bool in_time = changed_.wait_for(lock, timeout, [&] { return done() || !broken_.ok(); });
  if (!in_time) {
    const int32_t missing = waits_for == kMeeting ? Missing() : waits_for;
    lock.unlock();  // to find out who is to blame all groups are asked
    blame_(missing, timeout);
    lock.lock();
  }
  waits_for_[rank] = kNobody;
  return done() ? Status::Ok() : broken_;
}

Status MemoryGroup::Meet(int32_t rank, bool sure) {
  const uint32_t round = round_.load(std::memory_order_relaxed);
  {
    const std::lock_guard lock(mutex_);
    if (!sure && !broken_.ok()) return broken_;
    arrived_[rank] = true;
    if (++num_arrived_ == size()) {
      num_arrived_ = 0;
      std::fill(arrived_.begin(), arrived_.end(), false);
      round_.store(round + 1, std::memory_order_release);
      changed_.notify_all();
      return Status::Ok();
    }
  }
  const auto met = [&] { return round_.load(std::memory_order_acquire) != round; };
  for (int32_t spin = 0; spin < spins_; ++spin) {
    if (met()) return Status::Ok();
    Pause();
  }
  Lock lock(mutex_);
  if (!sure) return Await(lock, rank, kMeeting, met);
  changed_.wait(lock, met);
  return Status::Ok();
}

Status MemoryGroup::Enter(int32_t rank, const CommCall& call) {
  calls_[rank] = call;
  return Meet(rank, /*sure=*/false);
}

void MemoryGroup::Leave(int32_t rank) { static_cast<void>(Meet(rank, /*sure=*/true)); }

Status MemoryGroup::Put(int32_t from, int32_t to, const void* data, size_t bytes) {
  Lock lock(mutex_);
  Mailbox& box = Box(from, to);
  FASTLLM_RETURN_IF_ERROR(Await(lock, from, to, [&] { return box.waiting.size() < kMostMessages && broken_.ok(); }));
  std::vector<char> message;
  if (!box.unused.empty()) {
    message = std::move(box.unused.back());
    box.unused.pop_back();
  }
  lock.unlock();
  message.resize(bytes);
  std::memcpy(message.data(), data, bytes);
  lock.lock();
  box.waiting.push_back(std::move(message));
  changed_.notify_all();
  return Status::Ok();
}

Result<size_t> MemoryGroup::Take(int32_t from, int32_t to, void* data, size_t bytes) {
  Lock lock(mutex_);
  Mailbox& box = Box(from, to);
  FASTLLM_RETURN_IF_ERROR(Await(lock, to, from, [&] { return !box.waiting.empty() && broken_.ok(); }));
  std::vector<char> message = std::move(box.waiting.front());
  box.waiting.pop_front();
  changed_.notify_all();  // there is room again
  lock.unlock();
  const size_t size = message.size();
  if (size == bytes) std::memcpy(data, message.data(), bytes);
  lock.lock();
  if (box.unused.size() < kMostMessages) box.unused.push_back(std::move(message));
  return size;
}

Status MemoryGroup::broken() const {
  const std::lock_guard lock(mutex_);
  return broken_;
}

void MemoryGroup::Break(const Status& why) {
  const std::lock_guard lock(mutex_);
  if (!broken_.ok()) return;
  broken_ = why;
  changed_.notify_all();
}

}  // namespace fastllm::runtime
