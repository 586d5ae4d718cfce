#include "core/kv/kv_events.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/base/check.h"

namespace fastllm {
namespace {

size_t MostTokens(int32_t block_size, const std::vector<int32_t>& group_blocks) {
  FASTLLM_CHECK(!group_blocks.empty(), "events need a KV group");
  return static_cast<size_t>(block_size) * static_cast<size_t>(std::ranges::max(group_blocks));
}

}  // namespace

KvEventRing::KvEventRing(int32_t capacity, int32_t block_size, std::vector<int32_t> group_blocks)
    : capacity_(static_cast<size_t>(capacity)),
      block_size_(block_size),
      group_blocks_(std::move(group_blocks)),
      most_tokens_(MostTokens(block_size, group_blocks_)) {
  FASTLLM_CHECK(capacity >= 1, "event capacity is " + std::to_string(capacity));
  entries_.resize(capacity_);
  tokens_.resize(capacity_ * most_tokens_);
}

bool KvEventRing::Begin(const Entry& entry) {
  const uint64_t sequence = next_sequence_.load(std::memory_order_relaxed);
  next_sequence_.store(sequence + 1, std::memory_order_release);
  const uint64_t written = written_.load(std::memory_order_relaxed);
  if (written - read_.load(std::memory_order_acquire) == capacity_) {
    num_lost_.store(num_lost_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    return false;
  }
  Entry& place = entries_[written % capacity_];
  place = entry;
  place.sequence = sequence;
  return true;
}

std::span<TokenId> KvEventRing::BeginStored(int32_t group, uint64_t hash, bool has_parent, uint64_t parent_hash) {
  if (!Begin({0, hash, parent_hash, group, KvEventKind::kStored, has_parent})) return {};
  const size_t place = written_.load(std::memory_order_relaxed) % capacity_;
  return std::span(tokens_).subspan(place * most_tokens_, static_cast<size_t>(block_size_) * group_blocks_[group]);
}

void KvEventRing::Publish() { written_.store(written_.load(std::memory_order_relaxed) + 1, std::memory_order_release); }

void KvEventRing::Removed(int32_t group, uint64_t hash) {
  if (Begin({0, hash, 0, group, KvEventKind::kRemoved, false})) Publish();
}

void KvEventRing::Cleared() {
  if (Begin({0, 0, 0, 0, KvEventKind::kCleared, false})) Publish();
}

size_t KvEventRing::Drain(size_t most, std::vector<KvEvent>* out) {
  const uint64_t begin = read_.load(std::memory_order_relaxed);
  const uint64_t end = std::min(written_.load(std::memory_order_acquire), begin + most);
  for (uint64_t i = begin; i < end; ++i) {
    const Entry& entry = entries_[i % capacity_];
    KvEvent& event = out->emplace_back(
        KvEvent{entry.sequence, entry.kind, entry.has_parent, entry.group, entry.hash, entry.parent_hash, {}});
    if (entry.kind != KvEventKind::kStored) continue;
    const auto tokens = tokens_.begin() + static_cast<ptrdiff_t>(i % capacity_ * most_tokens_);
    event.tokens.assign(tokens, tokens + static_cast<ptrdiff_t>(block_size_) * group_blocks_[entry.group]);
  }
  read_.store(end, std::memory_order_release);
  return end - begin;
}

}  // namespace fastllm
