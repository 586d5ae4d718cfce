#include "core/engine/outbox.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <iterator>
#include <system_error>
#include <utility>

namespace fastllm {

Outbox::Outbox() : event_fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (event_fd_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
}

Outbox::~Outbox() { close(event_fd_); }

void Outbox::Push(std::vector<RequestDelta> deltas) {
  if (deltas.empty()) return;
  {
    std::lock_guard lock(mutex_);
    if (!pending_.empty()) {
      pending_.insert(pending_.end(), std::make_move_iterator(deltas.begin()), std::make_move_iterator(deltas.end()));
      return;  // whoever drains has been woken and not yet come
    }
    pending_ = std::move(deltas);
    // A write of 1 to an eventfd at 0 cannot fail.
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(event_fd_, &one, sizeof(one));
  }
  filled_.notify_one();
}

std::vector<RequestDelta> Outbox::Drain(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  if (timeout.count() > 0) filled_.wait_for(lock, timeout, [this] { return closed_ || !pending_.empty(); });
  std::vector<RequestDelta> taken = std::exchange(pending_, {});
  if (!taken.empty()) {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = read(event_fd_, &count, sizeof(count));
  }
  return taken;
}

void Outbox::Close() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  filled_.notify_all();
}

}  // namespace fastllm
