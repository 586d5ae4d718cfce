#include "core/sched/sequence_table.h"

#include <utility>

namespace fastllm {

SeqSlot SequenceTable::Insert(Sequence sequence) {
  SeqSlot slot;
  if (unused_.empty()) {
    slot = static_cast<SeqSlot>(records_.size());
    records_.emplace_back();
  } else {
    slot = unused_.back();
    unused_.pop_back();
  }
  const RequestId id = sequence.request->id;
  slot_of_[id] = slot;
  records_[slot].id = id;
  records_[slot].num_prompt_tokens = sequence.num_prompt_tokens();
  records_[slot].max_tokens = sequence.request->max_tokens;
  records_[slot].seq = std::move(sequence);
  return slot;
}

void SequenceTable::Erase(SeqSlot slot) {
  slot_of_.erase(records_[slot].id);
  records_[slot] = SequenceRecord{};
  unused_.push_back(slot);
}

SeqSlot SequenceTable::Find(RequestId id) const {
  const auto it = slot_of_.find(id);
  return it == slot_of_.end() ? kNoSlot : it->second;
}

void SlotList::PushBack(SeqSlot slot) {
  SequenceRecord& record = (*table_)[slot];
  record.prev = back_;
  record.next = kNoSlot;
  (back_ == kNoSlot ? front_ : (*table_)[back_].next) = slot;
  back_ = slot;
  ++size_;
}

void SlotList::PushFront(SeqSlot slot) {
  SequenceRecord& record = (*table_)[slot];
  record.prev = kNoSlot;
  record.next = front_;
  (front_ == kNoSlot ? back_ : (*table_)[front_].prev) = slot;
  front_ = slot;
  ++size_;
}

void SlotList::Remove(SeqSlot slot) {
  SequenceRecord& record = (*table_)[slot];
  (record.prev == kNoSlot ? front_ : (*table_)[record.prev].next) = record.next;
  (record.next == kNoSlot ? back_ : (*table_)[record.next].prev) = record.prev;
  record.prev = record.next = kNoSlot;
  --size_;
}

}  // namespace fastllm
