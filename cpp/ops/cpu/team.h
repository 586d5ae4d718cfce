// Team: the compute threads of the CPU ops. Each thread that calls ops owns one team: itself and helpers that live as
// long as it does. A helper that has finished its share spins for a short while, so that the regions of a step start
// within a fraction of a microsecond, and then sleeps in the kernel.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace fastllm::ops::cpu {

class Team {
 public:
  // Work of one thread in a region: index in [0, count). Barrier() waits for all threads of the region.
  class Member {
   public:
    Member(Team& team, int32_t index, int32_t count) : team_(team), index_(index), count_(count) {}
    int32_t index() const { return index_; }
    int32_t count() const { return count_; }
    void Barrier() const { team_.Wait(count_); }

   private:
    Team& team_;
    int32_t index_;
    int32_t count_;
  };

  // The calling thread's team. Made at the first call, ended with the thread.
  static Team& OfThisThread();

  // Calls body(member) on `count` threads, the caller among them, and returns when all have returned. Bodies must not
  // throw. `work` is the nanoseconds of one core in the whole region: where helpers are asleep and waking them costs
  // more than they would save, they are woken for the next region, and this one gets fewer threads (at least the
  // caller). Inside a region the body runs on the caller alone.
  template <typename Body>
  void Run(int32_t count, int64_t work, const Body& body) {
    const int32_t awake = count > 1 && !busy_ ? Prepare(count, work) : 1;
    if (awake <= 1) {
      const bool outer = busy_;
      busy_ = true;  // Barrier() of one thread returns at once
      body(Member(*this, 0, 1));
      busy_ = outer;
      return;
    }
    Start(
        awake, [](void* context, const Member& member) { (*static_cast<const Body*>(context))(member); },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

  // Wakes the helpers for a region of `count` threads that is about to come. Costs nothing where they are awake.
  void Wake(int32_t count);

  // Binds the calling thread to processor cpus[0], and helper i, when there is one, to cpus[i]. Returns 0 or the error
  // of the calling thread's; a helper that cannot be bound runs where it likes. Outside regions.
  int Pin(std::vector<int32_t> cpus);

  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

 private:
  using Call = void (*)(void* context, const Member& member);

  struct alignas(64) Helper {
    std::atomic<uint32_t> job{0};     // counts the regions that it takes part in
    std::atomic<uint32_t> asleep{0};  // 1: look at `ring`, on which it sleeps
    std::atomic<uint32_t> ring{0};
    std::thread thread;
  };
  struct alignas(64) Meeting {
    std::atomic<int32_t> arrived{0};
    std::atomic<uint32_t> round{0};
  };

  Team();
  int32_t Prepare(int32_t count, int64_t work);
  void Start(int32_t count, Call call, void* context);
  void Wait(int32_t count);
  void Serve(Helper& helper, int32_t index);
  bool AwaitJob(Helper& helper, uint32_t* seen);
  // Starts helpers until there are `count` - 1, or the system gives no more; returns the threads there are.
  int32_t Grow(int32_t count);
  static void Ring(Helper& helper);
  void Bind(std::thread& thread, int32_t index) const;
  // In a forked child the helpers are not there: forgets them.
  void ForgetAfterFork();

  std::vector<std::unique_ptr<Helper>> helpers_;
  std::vector<int32_t> cpus_;  // empty: nothing is bound
  Call call_ = nullptr;        // of the running region, as the next two
  void* context_ = nullptr;
  int32_t count_ = 0;
  std::atomic<bool> stop_{false};
  std::atomic<int32_t> spins_{0};  // how long threads spin before they sleep
  bool busy_ = false;              // a region runs
  bool refused_ = false;           // the system gave no further thread
  int32_t forks_ = 0;              // between the process of these helpers and the first
  alignas(64) std::atomic<int32_t> pending_{0};
  Meeting meeting_;
};

}  // namespace fastllm::ops::cpu
