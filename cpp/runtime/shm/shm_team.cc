#include "runtime/shm/shm_team.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

namespace fastllm::runtime {

ShmTeam::ShmTeam(ShmTeamState* state, int32_t size, int32_t self)
    : state_(state),
      size_(size),
      self_(self),
      // The last member drives the others and computes nothing.
      spins_(std::cmp_less_equal(size - 1, std::thread::hardware_concurrency()) ? 500 : 0) {}

void ShmTeam::Break(const Status& why) {
  uint32_t none = 0;
  if (state_->broken.compare_exchange_strong(none, 1, std::memory_order_acq_rel)) {
    state_->code = static_cast<int32_t>(why.code());
    const size_t length = std::min(why.message().size(), ShmTeamState::kMostText - 1);
    std::copy_n(why.message().begin(), length, state_->text.begin());
    state_->broken.store(2, std::memory_order_release);
  }
  for (int32_t member = 0; member < size_; ++member) Ring(member);
}

Status ShmTeam::broken() const {
  // Writing takes no time, unless the writer is off its processor; one that was killed meanwhile never ends.
  constexpr std::chrono::seconds kWriting{1};
  const auto state = [this] { return state_->broken.load(std::memory_order_acquire); };
  if (state() == 0) return Status::Ok();
  Member& own = state_->members[static_cast<size_t>(self_)];
  const auto written = [&] { return state() == 2; };
  if (!own.bell.Await(written, spins_, std::chrono::steady_clock::now() + kWriting)) {
    return Status::Unavailable("the ranks have failed");
  }
  return {static_cast<StatusCode>(state_->code), state_->text.data()};
}

int32_t ShmTeam::Culprit(int32_t member) const {
  for (int32_t steps = 0; steps < size_; ++steps) {
    const int32_t next = state_->members[static_cast<size_t>(member)].waits_for.load(std::memory_order_relaxed) - 1;
    if (next < 0 || next >= size_ - 1) return member;  // the driver is waited for by those who have nothing to do
    member = next;
  }
  return member;  // they wait in a circle
}

}  // namespace fastllm::runtime
