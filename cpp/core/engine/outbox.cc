#include "core/engine/outbox.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace fastllm {
namespace {

// `later` follows `delta` in the news of one request.
void Append(RequestDelta* delta, RequestDelta later) {
  delta->token_ids.insert(delta->token_ids.end(), later.token_ids.begin(), later.token_ids.end());
  delta->text += later.text;
  delta->text_offsets.insert(delta->text_offsets.end(), later.text_offsets.begin(), later.text_offsets.end());
  later.token_ids = std::move(delta->token_ids);
  later.text = std::move(delta->text);
  later.text_offsets = std::move(delta->text_offsets);
  *delta = std::move(later);
}

}  // namespace

Outbox::Outbox() : event_fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (event_fd_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
}

Outbox::~Outbox() { close(event_fd_); }

void Outbox::Push(std::vector<RequestDelta> deltas) {
  if (deltas.empty()) return;
  {
    std::lock_guard lock(mutex_);
    if (!pending_.empty()) {
      Join(std::move(deltas));
      return;  // whoever drains has been woken and not yet come
    }
    pending_ = std::move(deltas);
    // A write of 1 to an eventfd at 0 cannot fail.
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(event_fd_, &one, sizeof(one));
  }
  filled_.notify_one();
}

void Outbox::Join(std::vector<RequestDelta> deltas) {
  if (place_.empty()) {
    // An id may be in one batch more than once; the later one is then the one to join.
    for (size_t i = 0; i < pending_.size(); ++i) place_[pending_[i].request_id] = i;
  }
  for (RequestDelta& delta : deltas) {
    const auto [it, is_new] = place_.try_emplace(delta.request_id, pending_.size());
    if (is_new) {
      pending_.push_back(std::move(delta));
    } else {
      Append(&pending_[it->second], std::move(delta));
    }
  }
}

std::vector<RequestDelta> Outbox::Drain(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  if (timeout.count() > 0) filled_.wait_for(lock, timeout, [this] { return closed_ || !pending_.empty(); });
  std::vector<RequestDelta> taken = std::exchange(pending_, {});
  if (!taken.empty()) {
    place_.clear();
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
