// A slow, obvious model of KvManager for the random test: every rule is written out by trying all cases. Contents are
// numbered exactly (a trie of tokens), so nothing here depends on hashes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/ids.h"
#include "core/config/resolved.h"

namespace fastllm {

struct ModelSlot {
  bool open = false;
  bool reads_cache = true;
  bool counted = false;
  std::string salt;
  std::vector<TokenId> tokens;
  std::vector<int> contents;                 // [position], number of the prefix that ends there
  std::vector<std::vector<BlockId>> tables;  // [group]
  int computed = 0;                          // 0: not admitted
  int known = 0;                             // at admission
  int reserved = 0;
};

class KvModel {
 public:
  explicit KvModel(const KvConfig& config)
      : config_(config),
        ref_(config.num_blocks),
        level_(config.num_blocks),
        deadline_(config.num_blocks, -1),
        cached_(config.num_blocks, {-1, -1}),
        free_(64) {
    for (BlockId b = 1; b < config.num_blocks; ++b) free_[0].push_back(b);
    for (const KvGroupSpec& g : config.groups) alignment_ = std::lcm(alignment_, Size(g));
  }

  int Size(const KvGroupSpec& g) const { return g.block_size > 0 ? g.block_size : config_.block_size; }
  int Content(const std::string& salt, const std::vector<int>& before, TokenId token);

  // Whether a token at `position` >= settled may read anything of table entry `entry`.
  bool Needed(const KvGroupSpec& g, int entry, int settled) const;
  // Whether a step that ends before `end` stores something in an entry that is new in it.
  bool Stored(const KvGroupSpec& g, int entry, int end) const;
  int Peak(int num_tokens) const;

  // The longest usable hit of at most `most` tokens, by trying all lengths from the longest.
  int Hit(const std::vector<int>& contents, int most) const;
  // Whether all is cached that the last token reads, its own KV included. For block sizes from 2 on.
  bool Whole(const std::vector<int>& contents) const;
  // Of a sequence: all but the last token where it is whole.
  int HitOf(const std::vector<int>& contents) const;
  BlockId AnyBlock(int group, int content) const;

  bool Admit(ModelSlot* slot, int hit, int num_new);

  // The model's tables grow exactly when one of them is too short, as its contract says; then it frees first.
  bool Extend(ModelSlot* slot, int num_new, int num_in_flight);

  void Free(ModelSlot* slot);

  // Tokens pinned.
  int Pin(const std::vector<int>& contents, int level, int64_t ttl_ms);

  bool Reset();

  std::vector<BlockId> FreeList() const;
  int num_free() const;
  int num_cached() const;
  int ref(BlockId b) const { return ref_[b]; }
  int reserved() const { return reserved_; }
  int64_t now_ms = 0;

 private:
  static int Ceil(int a, int b) { return (a + b - 1) / b; }

  int Missing(const KvGroupSpec& g, size_t entries, int end) const;
  void Grow(ModelSlot* slot, int end);
  // Caches what is full now; new blocks only: each block of a table is full once.
  void Finish(ModelSlot* slot, int begin, int end);
  void SetReserved(ModelSlot* slot, int end);
  BlockId Take();
  void Touch(BlockId b);
  void FreeBehind(const KvGroupSpec& g, std::vector<BlockId>* table, int settled);
  void FreeBlocks(const std::vector<BlockId>& blocks);
  void SetLevel(BlockId b, int level);
  void Expire();

  KvConfig config_;
  int alignment_ = 1;
  std::map<std::pair<std::string, std::pair<int, TokenId>>, int> trie_;
  std::vector<int> ref_;
  std::vector<int> level_;
  std::vector<int64_t> deadline_;                                  // -1: none
  std::vector<std::pair<int, int>> cached_;                        // [block] = (group, content), -1: not cached
  std::map<std::pair<int, int>, std::vector<BlockId>> blocks_of_;  // oldest first
  std::vector<std::deque<BlockId>> free_;                          // [level], next to be taken first
  int reserved_ = 0;
};

}  // namespace fastllm
