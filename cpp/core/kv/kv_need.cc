#include "core/kv/kv_need.h"

#include <algorithm>
#include <string>

#include "core/base/check.h"

namespace fastllm {
namespace {

int32_t CeilDiv(int32_t a, int32_t b) { return a / b + (a % b != 0 ? 1 : 0); }

class FullNeed final : public KvNeed {
 public:
  explicit FullNeed(int32_t block_size) : block_size_(block_size) {}

  int32_t FirstNeeded(int32_t) const override { return 0; }
  int32_t EntriesForHit() const override { return kAll; }
  bool CanRepeatLast() const override { return true; }
  int32_t FirstGrown(int32_t) const override { return 0; }
  int32_t PeakBlocks(int32_t num_tokens) const override { return CeilDiv(num_tokens, block_size_); }

 private:
  int32_t block_size_;
};

class SlidingWindowNeed final : public KvNeed {
 public:
  SlidingWindowNeed(int32_t window, int32_t block_size, int32_t max_step_tokens)
      : window_(window), block_size_(block_size), max_step_tokens_(max_step_tokens) {}

  int32_t FirstNeeded(int32_t num_settled) const override {
    return std::max(0, num_settled - (window_ - 1)) / block_size_;
  }
  int32_t EntriesForHit() const override { return CeilDiv(window_ - 1, block_size_); }
  bool CanRepeatLast() const override { return true; }
  int32_t FirstGrown(int32_t) const override { return 0; }
  int32_t PeakBlocks(int32_t num_tokens) const override {
    const int32_t all = CeilDiv(num_tokens, block_size_);
    if (max_step_tokens_ == 0) return all;
    // The window before the first token that is not final, and the tokens from there on; they may begin in mid-block.
    const int64_t most = (int64_t{window_} - 1 + max_step_tokens_ + block_size_ - 1) / block_size_ + 1;
    return static_cast<int32_t>(std::min<int64_t>(all, most));
  }

 private:
  int32_t window_;
  int32_t block_size_;
  int32_t max_step_tokens_;
};

class StateNeed final : public KvNeed {
 public:
  explicit StateNeed(int32_t block_size) : block_size_(block_size) {}

  int32_t FirstNeeded(int32_t num_settled) const override { return std::max(0, num_settled - 1) / block_size_; }
  int32_t EntriesForHit() const override { return 1; }
  bool CanRepeatLast() const override { return false; }
  int32_t FirstGrown(int32_t end) const override { return std::max(0, end / block_size_ - 1); }
  int32_t PeakBlocks(int32_t num_tokens) const override {
    // The start state of a step in flight, and a checkpoint and a last state each of that step and the next.
    constexpr int32_t kMost = 5;
    return std::min(CeilDiv(num_tokens, block_size_), kMost);
  }

 private:
  int32_t block_size_;
};

}  // namespace

Status CheckGroupSpec(const KvGroupSpec& spec, int32_t block_size) {
  if (spec.block_size < 0 || spec.block_size % block_size != 0) {
    return Status::InvalidArgument("the block size of a KV group is " + std::to_string(spec.block_size) +
                                   ", a multiple of block_size " + std::to_string(block_size) + " is needed");
  }
  switch (spec.kind) {
    case KvGroupKind::kFull:
    case KvGroupKind::kState:
      if (spec.window == 0) return Status::Ok();
      return Status::InvalidArgument(std::string("a ") + (spec.kind == KvGroupKind::kFull ? "full" : "state") +
                                     " KV group has no window, but window is " + std::to_string(spec.window));
    case KvGroupKind::kSlidingWindow:
      if (spec.window >= 1) return Status::Ok();
      return Status::InvalidArgument("the window of a sliding-window KV group is " + std::to_string(spec.window) +
                                     ", at least 1 is needed");
  }
  return Status::InvalidArgument("unknown KV group kind " + std::to_string(static_cast<int>(spec.kind)));
}

std::unique_ptr<KvNeed> MakeKvNeed(const KvGroupSpec& spec, int32_t block_size, int32_t max_step_tokens) {
  const Status status = CheckGroupSpec(spec, block_size);
  FASTLLM_CHECK(status.ok(), status.ToString());
  const int32_t size = spec.block_size > 0 ? spec.block_size : block_size;
  if (spec.kind == KvGroupKind::kSlidingWindow) {
    return std::make_unique<SlidingWindowNeed>(spec.window, size, max_step_tokens);
  }
  if (spec.kind == KvGroupKind::kState) return std::make_unique<StateNeed>(size);
  return std::make_unique<FullNeed>(size);
}

}  // namespace fastllm
