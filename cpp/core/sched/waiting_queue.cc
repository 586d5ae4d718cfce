#include "core/sched/waiting_queue.h"

#include <tuple>
#include <utility>

namespace fastllm {

bool ComesBefore(const SequenceRecord& a, const SequenceRecord& b) {
  return std::tuple(a.seq.request->priority, a.arrival_ns, a.id) <
         std::tuple(b.seq.request->priority, b.arrival_ns, b.id);
}

WaitingQueue::WaitingQueue(SequenceTable* table, bool by_priority)
    : table_(table), by_priority_(by_priority), list_(table), order_(Before{table}) {}

void WaitingQueue::Count(SeqSlot slot) {
  SequenceRecord& record = (*table_)[slot];
  record.queued_tokens = record.seq.num_tokens();
  num_tokens_ += record.queued_tokens;
}

void WaitingQueue::Push(SeqSlot slot) {
  Count(slot);
  if (by_priority_) {
    order_.insert(slot);
  } else {
    list_.PushBack(slot);
  }
}

void WaitingQueue::PushPreempted(SeqSlot slot) {
  Count(slot);
  if (by_priority_) {
    order_.insert(slot);
  } else {
    list_.PushFront(slot);
  }
}

void WaitingQueue::Remove(SeqSlot slot) {
  num_tokens_ -= std::exchange((*table_)[slot].queued_tokens, 0);
  if (by_priority_) {
    order_.erase(slot);
  } else {
    list_.Remove(slot);
  }
}

SeqSlot WaitingQueue::front() const {
  if (!by_priority_) return list_.front();
  return order_.empty() ? kNoSlot : *order_.begin();
}

}  // namespace fastllm
