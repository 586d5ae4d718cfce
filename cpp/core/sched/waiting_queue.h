// WaitingQueue: the sequences that are not running, in the order in which they are admitted. One thread.
#pragma once

#include <cstdint>
#include <set>

#include "core/sched/sequence_table.h"

namespace fastllm {

// Whether a comes before b under the priority policy: by (priority, arrival, id), each ascending.
bool ComesBefore(const SequenceRecord& a, const SequenceRecord& b);

// First come, first served: in the order of Push(), preempted ones and followers at the front. O(1).
// By priority: ComesBefore(), for preempted ones too. O(log n).
class WaitingQueue {
 public:
  WaitingQueue(SequenceTable* table, bool by_priority);

  void Push(SeqSlot slot);
  void PushPreempted(SeqSlot slot);  // and followers: it waited before all that wait now
  void Remove(SeqSlot slot);

  SeqSlot front() const;  // kNoSlot when empty
  int32_t size() const { return by_priority_ ? static_cast<int32_t>(order_.size()) : list_.size(); }
  bool empty() const { return size() == 0; }
  int64_t num_tokens() const { return num_tokens_; }  // of all that wait, as of when they were pushed

 private:
  struct Before {
    const SequenceTable* table;
    bool operator()(SeqSlot a, SeqSlot b) const { return ComesBefore((*table)[a], (*table)[b]); }
  };
  void Count(SeqSlot slot);

  SequenceTable* table_;
  bool by_priority_;
  SlotList list_;
  std::set<SeqSlot, Before> order_;
  int64_t num_tokens_ = 0;
};

}  // namespace fastllm
