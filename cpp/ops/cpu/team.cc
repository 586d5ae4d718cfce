#include "ops/cpu/team.h"

#include <pthread.h>
#include <sched.h>

#include <chrono>
#include <system_error>
#include <utility>

namespace fastllm::ops::cpu {
namespace {

// A pause of the x86 kind takes 10 to 60 ns; a few thousand of them outlast the gap between two steps of an engine.
constexpr int32_t kSpins = 4000;
// While the caller waits for a helper that the system has taken off its core.
constexpr int32_t kSpinsBeforeYield = 2000;
// Nanoseconds that waking a sleeping thread takes.
constexpr int64_t kWakeCost = 60000;

void Pause() {
#if defined(__x86_64__) || defined(_M_X64)
  __builtin_ia32_pause();
#else
  std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

int32_t AllowedCores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

// How many forks lie between this process and the first one that made a team.
std::atomic<int32_t>& Forks() {
  static std::atomic<int32_t> forks{0};
  return forks;
}

}  // namespace

Team::Team() {
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { Forks().fetch_add(1, std::memory_order_relaxed); });
  static_cast<void>(registered);
  forks_ = Forks().load(std::memory_order_relaxed);
}

void Team::ForgetAfterFork() {
  const int32_t forks = Forks().load(std::memory_order_relaxed);
  if (forks == forks_) return;
  forks_ = forks;
  for (auto& helper : helpers_) {
    helper->thread.detach();
    static_cast<void>(helper.release());  // its atomics may have waiters on record
  }
  helpers_.clear();
  refused_ = false;
}

Team& Team::OfThisThread() {
  thread_local Team team;
  return team;
}

Team::~Team() {
  ForgetAfterFork();
  stop_.store(true, std::memory_order_seq_cst);
  for (const auto& helper : helpers_) {
    Ring(*helper);
    helper->thread.join();
  }
}

int32_t Team::Grow(int32_t count) {
  ForgetAfterFork();
  while (static_cast<int32_t>(helpers_.size()) + 1 < count && !refused_) {
    auto helper = std::make_unique<Helper>();
    const auto index = static_cast<int32_t>(helpers_.size()) + 1;
    // More threads than cores: whoever spins keeps another from its work.
    const int32_t cores = cpus_.empty() ? AllowedCores() : static_cast<int32_t>(cpus_.size());
    spins_.store(index + 1 <= cores ? kSpins : 0, std::memory_order_relaxed);
    try {
      helper->thread = std::thread([this, h = helper.get(), index] { Serve(*h, index); });
    } catch (const std::system_error&) {
      refused_ = true;  // fewer threads: slower, and right all the same
      break;
    }
    Bind(helper->thread, index);
    helpers_.push_back(std::move(helper));
  }
  const auto there = static_cast<int32_t>(helpers_.size()) + 1;
  return there < count ? there : count;
}

int Team::Pin(std::vector<int32_t> cpus) {
  ForgetAfterFork();
  cpus_ = std::move(cpus);
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpus_.at(0), &set);
  const int error = pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
  for (size_t i = 0; i < helpers_.size(); ++i) Bind(helpers_[i]->thread, static_cast<int32_t>(i) + 1);
  return error;
}

void Team::Bind(std::thread& thread, int32_t index) const {
  if (static_cast<size_t>(index) >= cpus_.size()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpus_[static_cast<size_t>(index)], &set);
  static_cast<void>(pthread_setaffinity_np(thread.native_handle(), sizeof(set), &set));
}

// Wakes the helper if it sleeps or is about to: what was stored before (seq_cst) is seen by its last look.
void Team::Ring(Helper& helper) {
  if (helper.asleep.load(std::memory_order_seq_cst) == 0) return;
  helper.ring.fetch_add(1, std::memory_order_seq_cst);
  helper.ring.notify_one();
}

// Waits for a region to take part in. False: the team ends.
bool Team::AwaitJob(Helper& helper, uint32_t* seen) {
  for (;;) {
    const int32_t spins = spins_.load(std::memory_order_relaxed);
    for (int32_t spin = 0; spin <= spins; ++spin) {
      const uint32_t job = helper.job.load(std::memory_order_acquire);
      if (job != *seen) {
        *seen = job;
        return true;
      }
      if (stop_.load(std::memory_order_relaxed)) return false;
      Pause();
    }
    helper.asleep.store(1, std::memory_order_seq_cst);
    const uint32_t ring = helper.ring.load(std::memory_order_seq_cst);
    if (helper.job.load(std::memory_order_seq_cst) == *seen && !stop_.load(std::memory_order_seq_cst)) {
      helper.ring.wait(ring, std::memory_order_seq_cst);
    }
    helper.asleep.store(0, std::memory_order_seq_cst);
  }
}

void Team::Serve(Helper& helper, int32_t index) {
  OfThisThread().busy_ = true;  // a region that a body opens runs on this thread alone
  uint32_t seen = 0;
  while (AwaitJob(helper, &seen)) {
    call_(context_, Member(*this, index, count_));
    pending_.fetch_sub(1, std::memory_order_release);
  }
}

void Team::Wake(int32_t count) {
  if (busy_ || count <= 1) return;
  count = Grow(count);
  for (int32_t i = 1; i < count; ++i) Ring(*helpers_[i - 1]);
}

int32_t Team::Prepare(int32_t count, int64_t work) {
  count = Grow(count);
  if (work / count * (count - 1) >= kWakeCost) return count;
  for (int32_t i = 1; i < count; ++i) {
    if (helpers_[i - 1]->asleep.load(std::memory_order_relaxed) == 0) continue;
    if (spins_.load(std::memory_order_relaxed) > 0) Wake(count);
    return i;
  }
  return count;
}

void Team::Start(int32_t count, Call call, void* context) {
  busy_ = true;
  call_ = call;
  context_ = context;
  count_ = count;
  pending_.store(count - 1, std::memory_order_relaxed);
  for (int32_t i = 1; i < count; ++i) {
    helpers_[i - 1]->job.fetch_add(1, std::memory_order_seq_cst);
    Ring(*helpers_[i - 1]);
  }
  call(context, Member(*this, 0, count));
  for (int32_t spin = 0; pending_.load(std::memory_order_acquire) != 0; ++spin) {
    if (spin < kSpinsBeforeYield) {
      Pause();
    } else {
      std::this_thread::yield();
    }
  }
  busy_ = false;
}

void Team::Wait(int32_t count) {
  if (count <= 1) return;
  const uint32_t round = meeting_.round.load(std::memory_order_relaxed);
  if (meeting_.arrived.fetch_add(1, std::memory_order_acq_rel) == count - 1) {
    meeting_.arrived.store(0, std::memory_order_relaxed);
    meeting_.round.store(round + 1, std::memory_order_release);
    return;
  }
  for (int32_t spin = 0; meeting_.round.load(std::memory_order_acquire) == round; ++spin) {
    if (spin < kSpinsBeforeYield) {
      Pause();
    } else {
      std::this_thread::yield();
    }
  }
}

}  // namespace fastllm::ops::cpu
