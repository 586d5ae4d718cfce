// PinTable: until when blocks are pinned. Knows times and block numbers only; what a pin means is BlockPool's level.
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "core/base/ids.h"

namespace fastllm {

// Milliseconds of a clock that never goes back.
using KvClock = std::function<int64_t()>;
int64_t SteadyClockMs();

// One thread. Nothing is stored, and the clock is not asked, until something is pinned with a deadline.
class PinTable {
 public:
  PinTable(int32_t num_blocks, KvClock clock) : num_blocks_(num_blocks), clock_(std::move(clock)) {}

  // The pin of the block ends ttl_ms from now (0: never). A later call replaces an earlier one.
  void Set(BlockId block, int64_t ttl_ms);

  // Whether Expire() may find something.
  bool MayExpire() const { return !deadlines_.empty(); }
  // Appends the blocks whose pin has ended since the last call.
  void Expire(std::vector<BlockId>* ended);
  void Clear();

 private:
  struct Deadline {
    int64_t at_ms;
    BlockId block;
    friend auto operator<=>(const Deadline&, const Deadline&) = default;
  };

  int32_t num_blocks_;
  KvClock clock_;
  std::vector<int64_t> at_ms_;  // [block], the deadline that counts; empty until the first Set()
  std::priority_queue<Deadline, std::vector<Deadline>, std::greater<>> deadlines_;  // replaced ones included
};

}  // namespace fastllm
