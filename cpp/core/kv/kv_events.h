// KvEventRing: KV events (fastllm/kv_events.h) on their way from the engine thread to their reader.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/ids.h"
#include "fastllm/kv_events.h"

namespace fastllm {

// A bounded ring between the engine thread, which writes, and one reader thread. No locks; the writer never waits and
// never allocates: an event that finds the ring full is lost, which shows as a gap in the sequence numbers. A reader
// that sees a gap (or next_sequence() ahead of an empty ring) has to forget what it knows of this cache.
class KvEventRing {
 public:
  // `group_blocks[g]` is the block size of group g in blocks of `block_size` tokens, the unit of the prefix index.
  KvEventRing(int32_t capacity, int32_t block_size, std::vector<int32_t> group_blocks);

  // Writer. The caller fills the returned tokens (empty: the event is lost) and then calls Publish().
  std::span<TokenId> BeginStored(int32_t group, uint64_t hash, bool has_parent, uint64_t parent_hash);
  void Publish();
  void Removed(int32_t group, uint64_t hash);
  void Cleared();
  int32_t group_blocks(int32_t group) const { return group_blocks_[group]; }

  // Reader. Appends the oldest events, `most` at most, and frees their places; how many.
  size_t Drain(size_t most, std::vector<KvEvent>* out);
  // Any thread. The number that the next event will have.
  uint64_t next_sequence() const { return next_sequence_.load(std::memory_order_acquire); }
  // Any thread. Events that found the ring full, ever.
  uint64_t num_lost() const { return num_lost_.load(std::memory_order_acquire); }

 private:
  struct Entry {
    uint64_t sequence;
    uint64_t hash;
    uint64_t parent_hash;
    int32_t group;
    KvEventKind kind;
    bool has_parent;
  };

  bool Begin(const Entry& entry);  // false: full

  const size_t capacity_;
  const int32_t block_size_;
  const std::vector<int32_t> group_blocks_;
  const size_t most_tokens_;     // of one event
  std::vector<Entry> entries_;   // [place]
  std::vector<TokenId> tokens_;  // [place][most_tokens_]
  std::atomic<uint64_t> next_sequence_{0};
  std::atomic<uint64_t> num_lost_{0};
  alignas(64) std::atomic<uint64_t> written_{0};  // events ever put in; the place is the number modulo capacity
  alignas(64) std::atomic<uint64_t> read_{0};     // events ever taken out
};

}  // namespace fastllm
