// KvManager: the KV cache as the scheduler sees it: find a cached prefix, admit, extend, free. Knows tokens and extra
// keys, not requests. Contracts: cpp/docs/contract.md, section "kv". One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/ids.h"
#include "core/config/resolved.h"
#include "core/kv/block_hash.h"
#include "core/kv/block_pool.h"
#include "core/kv/coordinator.h"
#include "core/kv/extra_keys.h"
#include "core/kv/kv_events.h"
#include "core/kv/pin_table.h"
#include "core/kv/prefix_cache_stats.h"
#include "core/kv/prefix_index.h"
#include "fastllm/status.h"

namespace fastllm {

// kInvalidArgument for numbers out of range.
Status CheckKvConfig(const KvConfig& config);

class KvManager {
 public:
  // FASTLLM_CHECKs what CheckKvConfig() reports. The clock is for pins.
  explicit KvManager(const KvConfig& config, KvClock clock = SteadyClockMs);
  KvManager(const KvManager&) = delete;
  KvManager& operator=(const KvManager&) = delete;

  // Starts a sequence in an unused slot. Prefixes are shared only between sequences of equal extra keys. One that does
  // not read the cache (it needs the logits of its whole prompt) never hits; what it computes is cached all the same.
  // With prefix caching off, sequences of one family (a number other than 0 that is never used again) share prefixes
  // with each other and with nobody else.
  void Open(KvSlot slot, ExtraKeys keys, bool read_cache = true, uint64_t family = 0);
  void Open(KvSlot slot, std::string_view cache_salt);
  // So that the sequence grows to that many tokens without allocating memory.
  void Reserve(KvSlot slot, int32_t num_tokens);

  // The longest cached prefix of `tokens`, in tokens: whole blocks, and at most tokens.size() - 1, so that at least
  // one token is left to compute. tokens.size() - 1 also where whole blocks hold them all: hit_is_whole() then, and the
  // last token is computed again, for its logits; nobody writes its KV anew. No side effects on the cache. The slot
  // must hold no blocks. `tokens` must start with what was passed for this slot before: hashes are kept from call to
  // call.
  int32_t FindPrefix(KvSlot slot, std::span<const TokenId> tokens);
  // Whether the blocks of the last FindPrefix()'s hit hold the KV of all tokens. Until Admit().
  bool hit_is_whole() const { return hit_.slot >= 0 && hit_.whole; }

  // What FindPrefix() would find for a new sequence of these tokens. No side effects.
  int32_t CountCachedTokens(std::span<const TokenId> tokens, const ExtraKeys& keys) const;

  // Gives a slot without blocks the prefix that the last FindPrefix() found (num_hit tokens of it: its result, or 0)
  // and room for num_new tokens more. False, and nothing changed, unless all of `tokens` would fit in the blocks that
  // are free and not set aside for the rest of other admitted sequences' tokens, with num_spare blocks left over.
  bool Admit(KvSlot slot, std::span<const TokenId> tokens, int32_t num_hit, int32_t num_new, int32_t num_spare = 0);

  // Makes room for tokens num_computed .. num_computed + num_new - 1 of an admitted sequence; `tokens` are the known
  // ones. The last num_in_flight of the computed ones are not final: a step that reads behind them may still run, so
  // only blocks that no token after the final ones reads are given back. False when the pool has too few free blocks;
  // then no block was taken. new_blocks (may be null) becomes [group][entry] when the tables grew and is left alone
  // otherwise.
  bool Extend(KvSlot slot, std::span<const TokenId> tokens, int32_t num_computed, int32_t num_new,
              std::vector<std::vector<BlockId>>* new_blocks, int32_t num_in_flight = 0);

  // Takes back that tokens from num_computed on will be computed: their blocks leave the index. Free() comes next. Only
  // for tokens of the step being planned, and before any other sequence was admitted in it.
  void Uncompute(KvSlot slot, int32_t num_computed);

  // Gives the blocks back (preemption); the slot stays open.
  void Free(KvSlot slot);

  // Gives the blocks back and forgets the sequence.
  void Close(KvSlot slot);

  // Pins the cached part of a prefix (whole blocks) and returns its tokens: its free blocks are taken only when no
  // unpinned one is left, lower priorities first. The pin ends after ttl_ms (0: never), when the block is taken after
  // all, or by priority 0. kInvalidArgument for a priority outside [0, BlockPool::kMaxLevel] or a negative ttl.
  Result<int32_t> PinPrefix(std::span<const TokenId> tokens, const ExtraKeys& keys, int32_t priority, int64_t ttl_ms);

  // The blocks of a sequence, [group][entry]; null where none is needed.
  std::vector<std::vector<BlockId>> Tables(KvSlot slot) const;
  const std::vector<BlockId>& table(KvSlot slot, int32_t group) const { return coordinator_.table(group, slot); }

  // Forgets all cached prefixes and pins. False while any sequence holds blocks.
  bool ResetPrefixCache();

  // Tokens that one sequence can store when it has the pool to itself.
  int32_t capacity_tokens() const;
  int32_t num_groups() const { return coordinator_.num_groups(); }
  int32_t reserved_blocks() const { return counts_.reserved; }
  int32_t last_shortfall() const { return counts_.shortfall; }   // blocks that the last Admit() that failed lacked
  int64_t num_units_indexed() const { return counts_.indexed; }  // ever
  const PrefixCacheStats& stats() const { return stats_; }
  const BlockPool& pool() const { return pool_; }
  const PrefixIndex* index() const { return hashing_.all ? index_.get() : nullptr; }  // null when prefix caching is off
  KvEventRing* events() const { return index_->events(); }                            // null when off

 private:
  struct Slot {
    std::vector<BlockHash> hashes;  // of the full blocks seen so far
    ExtraKeys keys;
    PrefixNode tail = kRootNode;  // node of the last block that is in the index; held
    int32_t num_indexed = 0;      // blocks of this sequence that are in the index
    int32_t num_covered = 0;      // tokens that its tables cover
    int32_t num_known = 0;        // tokens at admission
    int32_t reserved = 0;         // blocks set aside for the tokens that were known at admission
    bool read_cache = true;
    bool indexed = true;   // its blocks come into the index
    bool counted = false;  // in stats_
  };
  struct Hashing {
    BlockHashSpec spec;
    bool all = true;  // off: only families are in the index
  };
  // The last FindPrefix(); any change of the cache ends it.
  struct Hit {
    std::vector<PrefixNode> nodes;
    KvSlot slot = -1;
    int32_t num_tokens = 0;
    bool whole = false;
  };
  struct Counts {
    int32_t reserved = 0;   // blocks, sum over slots
    int32_t shortfall = 0;  // last_shortfall()
    int64_t indexed = 0;    // num_units_indexed()
  };
  struct Scratch {
    std::vector<BlockId> blocks;  // one per group, while indexing
    std::string keys;             // extra keys of one block
  };

  std::string_view BlockKeys(const ExtraKeys& keys, int32_t block, std::string* scratch) const;
  void ExtendHashes(Slot* slot, std::span<const TokenId> tokens, int32_t num_full);
  // The nodes of the first `most` blocks, up to the first that is not in the index.
  void WalkIndex(std::span<const TokenId> tokens, const ExtraKeys& keys, std::span<const BlockHash> hashes,
                 int32_t most, std::string* scratch, std::vector<PrefixNode>* nodes) const;
  // The same for all whole blocks where hashes are not kept.
  std::vector<PrefixNode> LookUp(std::span<const TokenId> tokens, const ExtraKeys& keys) const;
  // Cuts the nodes that were found for num_tokens tokens to a usable hit, and says what it is.
  Hit CutToHit(std::vector<PrefixNode> nodes, int32_t num_tokens) const;
  bool GrowTables(KvSlot slot, int32_t num_computed, int32_t num_in_flight, int32_t end,
                  std::vector<std::vector<BlockId>>* new_blocks);
  void IndexFullBlocks(KvSlot slot, std::span<const TokenId> tokens, int32_t num_computed);
  void SetTail(Slot* slot, PrefixNode node);
  void UpdateReserved(KvSlot slot, int32_t end);
  void CountQuery(Slot* slot, int64_t query, int64_t hit);
  void EndExpiredPins();
  std::span<const TokenId> BlockTokens(std::span<const TokenId> tokens, int32_t block) const {
    return tokens.subspan(static_cast<size_t>(block) * block_size_, block_size_);
  }

  int32_t block_size_;
  Hashing hashing_;
  std::unique_ptr<PrefixIndex> index_;
  BlockPool pool_;
  KvCoordinator coordinator_;
  PinTable pins_;
  std::vector<Slot> slots_;
  Hit hit_;
  Scratch scratch_;
  Counts counts_;
  PrefixCacheStats stats_;
};

}  // namespace fastllm
