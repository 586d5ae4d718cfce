// SequenceTable: the scheduler's sequences in a dense slot array, with intrusive lists over the slots, so that every
// queue operation is O(1) and a step touches only what it schedules. One thread.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "core/base/ids.h"
#include "core/request/sequence.h"

namespace fastllm {

using SeqSlot = int32_t;  // also the slot in KvManager
inline constexpr SeqSlot kNoSlot = -1;

struct SequenceRecord {
  Sequence seq;
  RequestId id = 0;  // this and the next two are seq.request's, without the way there
  int32_t num_prompt_tokens = 0;
  int32_t max_tokens = 0;
  SeqSlot prev = kNoSlot;  // in the list that holds it
  SeqSlot next = kNoSlot;
  int32_t num_in_flight = 0;    // sampled tokens that have not come back: output that exists, but not here
  uint64_t first_step_id = 0;   // the plan that first had it; 0: none yet
  uint64_t last_step_id = 0;    // the last plan that had it since it was admitted, with
  int32_t last_num_tokens = 0;  // so many tokens
  int32_t queued_tokens = 0;    // what WaitingQueue counts for it
  int64_t arrival_ns = 0;
  uint64_t serial = 0;  // never used again, unlike the id
  bool known_to_executor = false;
  bool following = false;  // in Followers
};

class SequenceTable {
 public:
  // The slot of the new sequence; slots of erased ones are used again. References to records end here.
  SeqSlot Insert(Sequence sequence);
  void Erase(SeqSlot slot);
  SeqSlot Find(RequestId id) const;  // kNoSlot when unknown

  SequenceRecord& operator[](SeqSlot slot) { return records_[slot]; }
  const SequenceRecord& operator[](SeqSlot slot) const { return records_[slot]; }

 private:
  std::vector<SequenceRecord> records_;
  std::vector<SeqSlot> unused_;
  std::unordered_map<RequestId, SeqSlot> slot_of_;
};

// A list of slots in order, linked through their records. A slot is in one list at most.
class SlotList {
 public:
  explicit SlotList(SequenceTable* table) : table_(table) {}

  void PushBack(SeqSlot slot);
  void PushFront(SeqSlot slot);
  void Remove(SeqSlot slot);

  SeqSlot front() const { return front_; }
  SeqSlot back() const { return back_; }
  int32_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

 private:
  SequenceTable* table_;
  SeqSlot front_ = kNoSlot;
  SeqSlot back_ = kNoSlot;
  int32_t size_ = 0;
};

}  // namespace fastllm
