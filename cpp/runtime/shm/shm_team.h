// ShmTeam: the processes that share a piece of memory: a bell for each, who waits for whom, and why they have failed.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "fastllm/status.h"
#include "runtime/shm/bell.h"

namespace fastllm::runtime {

inline constexpr int32_t kMostTeamMembers = 128;

// In shared memory; zeros are a team that has not begun.
struct ShmTeamState {
  struct alignas(64) Member {
    Bell bell;
    std::atomic<int32_t> waits_for{0};  // 1 + the number of another; 0: nobody
  };
  static constexpr size_t kMostText = 500;

  std::atomic<uint32_t> broken{0};  // 1: somebody writes why; 2: it can be read
  int32_t code = 0;
  std::array<char, kMostText> text{};
  std::array<Member, kMostTeamMembers> members{};
};

// One member's view. A member has one bell for all that it may wait for, so that a failure wakes everybody by as many
// rings as there are members. Any thread of the member may wait; `waits_for` is for its main one.
class ShmTeam {
 public:
  static constexpr int32_t kNobody = -1;

  // `state` outlives this. Members 0 to size - 1.
  ShmTeam(ShmTeamState* state, int32_t size, int32_t self);

  int32_t self() const { return self_; }
  int32_t size() const { return size_; }

  // Waits until done(). At the deadline the error blames nobody: kDeadlineExceeded, without text. When the team breaks
  // meanwhile: why. `waits_for` is who is to make it true.
  template <typename Done>
  Status Await(const Done& done, int32_t waits_for, ShmDeadline deadline) {
    Member& own = state_->members[static_cast<size_t>(self_)];
    if (waits_for != kNobody) own.waits_for.store(waits_for + 1, std::memory_order_relaxed);
    const auto over = [&] { return done() || state_->broken.load(std::memory_order_acquire) != 0; };
    const bool in_time = own.bell.Await(over, spins_, deadline);
    if (waits_for != kNobody && in_time) own.waits_for.store(0, std::memory_order_relaxed);
    if (done()) return Status::Ok();
    return in_time ? broken() : Status(StatusCode::kDeadlineExceeded, "");
  }
  void Ring(int32_t member) { state_->members[static_cast<size_t>(member)].bell.Ring(); }

  // The first reason stays; wakes everybody.
  void Break(const Status& why);
  // Why the team is broken, or ok. Waits a moment for one who is writing why.
  Status broken() const;
  // Whom a member that does not go on waits for, and whom that one waits for, to the one that waits for nobody.
  int32_t Culprit(int32_t member) const;

 private:
  using Member = ShmTeamState::Member;
  ShmTeamState* state_;
  int32_t size_;
  int32_t self_;
  int32_t spins_;
};

}  // namespace fastllm::runtime
