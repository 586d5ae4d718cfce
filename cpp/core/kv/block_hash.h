// The chained hash of a full KV block: hash(block i) = H(hash(block i-1), tokens of block i, extra keys of block i).
// It only finds candidates: PrefixIndex compares the contents, so two contents with one hash never share KV.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/base/ids.h"

namespace fastllm {

struct BlockHash {
  uint64_t lo = 0;
  uint64_t hi = 0;
  friend bool operator==(const BlockHash&, const BlockHash&) = default;
};

// The parent of block 0: a fixed constant, so hashes are equal in every process.
inline constexpr BlockHash kChainSeed{0x9e3779b97f4a7c15ull, 0xc2b2ae3d27d4eb4full};

// Two 64-bit lanes; each absorbs the tokens two at a time by steps that are one-to-one in the lane and in the word, so
// blocks that differ in one word only never get one hash. `extra_keys` may be empty.
BlockHash HashBlock(const BlockHash& parent, std::span<const TokenId> tokens, std::string_view extra_keys);

// Extra keys of block 0 for a cache salt: tagged by kind, so that kinds added later cannot collide; "" for no salt.
std::string CacheSaltKey(std::string_view cache_salt);

}  // namespace fastllm
