// KvManager: the KV cache as the scheduler sees it: find a cached prefix, admit, extend, free. Knows tokens and salts,
// not requests. Contracts: cpp/docs/contract.md, section "kv". One thread.
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
#include "core/kv/prefix_index.h"
#include "fastllm/status.h"

namespace fastllm {

// kInvalidArgument for numbers out of range, kUnimplemented for a group kind without a manager.
Status CheckKvConfig(const KvConfig& config);

class KvManager {
 public:
  // FASTLLM_CHECKs what CheckKvConfig() reports.
  explicit KvManager(const KvConfig& config);
  KvManager(const KvManager&) = delete;
  KvManager& operator=(const KvManager&) = delete;

  // Starts a sequence in an unused slot. Prefixes are shared only between sequences of equal salt.
  void Open(KvSlot slot, std::string_view cache_salt);

  // The longest cached prefix of `tokens`, in tokens: whole blocks, and at most tokens.size() - 1, so that at least
  // one token is left to compute. No side effects on the cache. The slot must hold no blocks. `tokens` must start with
  // what was passed for this slot before: hashes are kept from call to call.
  int32_t FindPrefix(KvSlot slot, std::span<const TokenId> tokens);

  // Gives a slot without blocks the prefix that the last FindPrefix() found (num_hit tokens of it: its result, or 0)
  // and room for num_new tokens more. False, and nothing changed, unless all of `tokens` would fit in the blocks that
  // are free and not set aside for the rest of other admitted sequences' tokens.
  bool Admit(KvSlot slot, std::span<const TokenId> tokens, int32_t num_hit, int32_t num_new);

  // Makes room for tokens num_computed .. num_computed + num_new - 1 of an admitted sequence. False, and nothing
  // changed, when the pool has too few free blocks. new_blocks (may be null) becomes [group][block] when the sequence
  // got any and is left alone otherwise.
  bool Extend(KvSlot slot, std::span<const TokenId> tokens, int32_t num_computed, int32_t num_new,
              std::vector<std::vector<BlockId>>* new_blocks);

  // Gives the blocks back (preemption); the slot stays open.
  void Free(KvSlot slot);

  // Gives the blocks back and forgets the sequence.
  void Close(KvSlot slot);

  // The blocks of a sequence, [group][block].
  std::vector<std::vector<BlockId>> Tables(KvSlot slot) const;
  const std::vector<BlockId>& table(KvSlot slot, int32_t group) const { return coordinator_.table(group, slot); }

  // Forgets all cached prefixes. False while any sequence holds blocks.
  bool ResetPrefixCache();

  // Tokens that one sequence can store when it has the pool to itself.
  int32_t capacity_tokens() const;
  int32_t num_groups() const { return coordinator_.num_groups(); }
  int32_t reserved_blocks() const { return reserved_; }
  const BlockPool& pool() const { return pool_; }
  const PrefixIndex* index() const { return index_.get(); }  // null when prefix caching is off

 private:
  struct Slot {
    std::vector<BlockHash> hashes;  // of the full blocks seen so far
    std::string extra_keys;         // of block 0
    PrefixNode tail = kRootNode;    // node of the last block that is in the index
    int32_t num_indexed = 0;        // blocks of this sequence that are in the index
    int32_t reserved = 0;           // blocks set aside for the tokens that were known at admission
  };

  void ExtendHashes(Slot* slot, std::span<const TokenId> tokens);
  void IndexFullBlocks(KvSlot slot, std::span<const TokenId> tokens, int32_t num_computed);
  void SetReserved(Slot* slot, int32_t blocks);
  std::span<const TokenId> BlockTokens(std::span<const TokenId> tokens, int32_t block) const;

  int32_t block_size_;
  std::unique_ptr<PrefixIndex> index_;
  BlockPool pool_;
  KvCoordinator coordinator_;
  std::vector<Slot> slots_;
  std::vector<PrefixNode> hit_;  // of the last FindPrefix(), for hit_slot_; any change of the cache ends it
  KvSlot hit_slot_ = -1;
  std::vector<BlockId> row_;  // one block per group, while indexing
  int32_t reserved_ = 0;      // sum over slots
};

}  // namespace fastllm
