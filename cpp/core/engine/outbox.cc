#include "core/engine/outbox.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <iterator>
#include <system_error>
#include <utility>

#include "core/engine/join_deltas.h"

namespace fastllm {
namespace {

constexpr size_t kMostUsed = 4096;  // deltas that wait to be filled again

// Request::id of the output.
RequestId OutputId(const RequestDelta& delta) { return delta.request_id + static_cast<RequestId>(delta.index); }

void MoveInto(std::vector<RequestDelta>* from, std::vector<RequestDelta>* to, size_t count) {
  const auto begin = from->end() - static_cast<ptrdiff_t>(count);
  to->insert(to->end(), std::make_move_iterator(begin), std::make_move_iterator(from->end()));
  from->erase(begin, from->end());
}

}  // namespace

size_t& DeltaPlaces::FindOrAdd(RequestId id, size_t place) {
  if (2 * (size_ + 1) > entries_.size()) Grow();
  // Ids count up, so that their low bits are spread as they are.
  for (size_t at = id & (entries_.size() - 1);; at = (at + 1) & (entries_.size() - 1)) {
    if (entries_[at].id == id) return entries_[at].place;
    if (entries_[at].id != 0) continue;
    entries_[at] = {id, place};
    ++size_;
    return entries_[at].place;
  }
}

void DeltaPlaces::Grow() {
  std::vector<Entry> old = std::exchange(entries_, std::vector<Entry>(std::max<size_t>(64, 2 * entries_.size())));
  size_ = 0;
  for (const Entry& entry : old) {
    if (entry.id != 0) FindOrAdd(entry.id, entry.place);
  }
}

void DeltaPlaces::Clear() {
  if (size_ > 0) std::ranges::fill(entries_, Entry{});
  size_ = 0;
}

Outbox::Outbox() : event_fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (event_fd_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
}

Outbox::~Outbox() { close(event_fd_); }

// A write of 1 to an eventfd at 0 cannot fail.
void Outbox::Signal() {
  if (std::exchange(signalled_, true)) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(event_fd_, &one, sizeof(one));
}

void Outbox::Push(std::vector<RequestDelta>* deltas, std::vector<RequestDelta>* used) {
  if (deltas->empty()) return;
  {
    std::lock_guard lock(mutex_);
    if (used->size() < deltas->size()) MoveInto(&used_, used, std::min(used_.size(), deltas->size()));
    if (!pending_.empty()) {
      Join(deltas);
      return;  // whoever drains has been woken and not yet come
    }
    pending_.swap(*deltas);
    Signal();
  }
  filled_.notify_one();
}

void Outbox::Join(std::vector<RequestDelta>* deltas) {
  if (places_.empty()) {
    // An id may be in one batch more than once; the later one is then the one to join.
    for (size_t i = 0; i < pending_.size(); ++i) places_.FindOrAdd(OutputId(pending_[i]), i) = i;
  }
  for (RequestDelta& delta : *deltas) {
    const size_t place = places_.FindOrAdd(OutputId(delta), pending_.size());
    if (place == pending_.size()) {
      pending_.push_back(std::move(delta));
    } else {
      JoinDeltas(&pending_[place], &delta);
    }
  }
  GiveBack(deltas);
}

void Outbox::GiveBack(std::vector<RequestDelta>* deltas) {
  const size_t room = kMostUsed - std::min(kMostUsed, used_.size());
  MoveInto(deltas, &used_, std::min(room, deltas->size()));
  deltas->clear();
}

void Outbox::Drain(std::chrono::milliseconds timeout, std::vector<RequestDelta>* deltas) {
  std::unique_lock lock(mutex_);
  GiveBack(deltas);
  if (timeout.count() > 0) filled_.wait_for(lock, timeout, [this] { return closed_ || !pending_.empty(); });
  pending_.swap(*deltas);
  places_.Clear();
  if (!std::exchange(signalled_, false)) return;
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = read(event_fd_, &count, sizeof(count));
}

void Outbox::Close() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    Signal();
  }
  filled_.notify_all();
}

}  // namespace fastllm
