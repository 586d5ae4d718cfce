// Deadlines: which requests have run out of time. A heap; a look at it costs O(1) while nothing is due. One thread.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/ids.h"

namespace fastllm {

struct Deadline {
  int64_t at_ms = 0;    // on the scheduler's clock
  uint64_t serial = 0;  // SequenceRecord::serial: an id may be in use again
  RequestId id = 0;
  bool queue_only = false;  // void once the request has been admitted
};

class Deadlines {
 public:
  void Add(const Deadline& deadline);
  // Takes out the earliest one that is due (at_ms <= now_ms). False when there is none.
  bool TakeDue(int64_t now_ms, Deadline* due);
  bool empty() const { return heap_.empty(); }

 private:
  std::vector<Deadline> heap_;  // the earliest in front
};

}  // namespace fastllm
