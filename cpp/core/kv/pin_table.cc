#include "core/kv/pin_table.h"

#include <chrono>
#include <limits>

namespace fastllm {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

}  // namespace

int64_t SteadyClockMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void PinTable::Set(BlockId block, int64_t ttl_ms) {
  if (at_ms_.empty()) at_ms_.resize(num_blocks_, kNever);
  const int64_t now = ttl_ms > 0 ? clock_() : 0;
  at_ms_[block] = ttl_ms > 0 && ttl_ms < kNever - now ? now + ttl_ms : kNever;
  if (at_ms_[block] != kNever) deadlines_.push({at_ms_[block], block});
}

void PinTable::Expire(std::vector<BlockId>* ended) {
  if (deadlines_.empty()) return;
  const int64_t now = clock_();
  for (; !deadlines_.empty() && deadlines_.top().at_ms <= now; deadlines_.pop()) {
    const Deadline& top = deadlines_.top();
    if (at_ms_[top.block] != top.at_ms) continue;  // replaced
    at_ms_[top.block] = kNever;
    ended->push_back(top.block);
  }
}

void PinTable::Clear() {
  at_ms_.clear();
  deadlines_ = {};
}

}  // namespace fastllm
