#include "core/sched/deadlines.h"

#include <algorithm>

namespace fastllm {
namespace {

bool Later(const Deadline& a, const Deadline& b) { return a.at_ms > b.at_ms; }

}  // namespace

void Deadlines::Add(const Deadline& deadline) {
  heap_.push_back(deadline);
  std::ranges::push_heap(heap_, Later);
}

bool Deadlines::TakeDue(int64_t now_ms, Deadline* due) {
  if (heap_.empty() || heap_.front().at_ms > now_ms) return false;
  std::ranges::pop_heap(heap_, Later);
  *due = heap_.back();
  heap_.pop_back();
  return true;
}

}  // namespace fastllm
