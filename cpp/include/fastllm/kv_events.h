// KV events: which prefixes this cache can serve, told to a router or an indexer outside. A block of a group is
// "stored" when the first copy of its content enters the prefix cache and "removed" when the last copy leaves it.
#pragma once

#include <cstdint>
#include <vector>

namespace fastllm {

enum class KvEventKind : uint8_t { kStored = 0, kRemoved = 1, kCleared = 2 };

struct KvEvent {
  uint64_t sequence = 0;  // 0, 1, 2, ...; a number that is left out was lost to overflow
  KvEventKind kind = KvEventKind::kStored;
  bool has_parent = false;      // stored: false for the first block of a sequence
  int32_t group = 0;            // stored, removed
  uint64_t hash = 0;            // stored, removed: low 64 bits of the block's hash
  uint64_t parent_hash = 0;     // stored, with has_parent: of the same group's block before
  std::vector<int32_t> tokens;  // stored: block_size of the group many

  int32_t block_size() const { return static_cast<int32_t>(tokens.size()); }  // stored
};

struct KvEventBatch {
  std::vector<KvEvent> events;  // oldest first
  // Events that were lost since the engine's start because nobody drained the ring. When the number has grown, the
  // reader has to forget what it knows of this cache.
  uint64_t num_lost = 0;
};

}  // namespace fastllm
