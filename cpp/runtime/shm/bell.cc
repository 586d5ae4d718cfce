#include "runtime/shm/bell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <ctime>

namespace fastllm::runtime {
namespace {

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t) && std::atomic<uint32_t>::is_always_lock_free);

// Not the private kind: the word is mapped by several processes.
int64_t Futex(std::atomic<uint32_t>* word, int op, uint32_t value, const timespec* until) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), op, value, until, nullptr, FUTEX_BITSET_MATCH_ANY);
}

}  // namespace

void Bell::Ring() {
  rings.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers.load(std::memory_order_seq_cst) != 0) Futex(&rings, FUTEX_WAKE_BITSET, INT_MAX, nullptr);
}

bool Bell::Sleep(uint32_t seen, ShmDeadline deadline) {
  using std::chrono::nanoseconds;
  timespec until{};
  if (deadline != kNoDeadline) {
    const auto since = std::chrono::duration_cast<nanoseconds>(deadline.time_since_epoch()).count();
    until = {static_cast<time_t>(since / 1000000000),
             static_cast<long>(since % 1000000000)};  // NOLINT(google-runtime-int)
  }
  sleepers.fetch_add(1, std::memory_order_seq_cst);
  // steady_clock is CLOCK_MONOTONIC, which FUTEX_WAIT_BITSET measures by.
  const int64_t result = Futex(&rings, FUTEX_WAIT_BITSET, seen, deadline == kNoDeadline ? nullptr : &until);
  const bool late = result != 0 && errno == ETIMEDOUT;
  sleepers.fetch_sub(1, std::memory_order_seq_cst);
  return !late;
}

}  // namespace fastllm::runtime
