// The chained hash of a full KV block: hash(block i) = H(hash(block i-1), tokens of block i, extra keys of block i).
// It only finds candidates: PrefixIndex compares the contents, so two contents with one hash never share KV.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "core/base/ids.h"
#include "core/config/resolved.h"

namespace fastllm {

// The digest as a number, lowest 64 bits first: XXH3 fills lo and hi, SHA-256 all four words. `lo` is also the name of
// the block in KV events.
struct BlockHash {
  uint64_t lo = 0;
  uint64_t hi = 0;
  std::array<uint64_t, 2> high = {};
  friend bool operator==(const BlockHash&, const BlockHash&) = default;
};

// The parent of block 0: a fixed constant.
inline constexpr BlockHash kChainSeed{0x9e3779b97f4a7c15ull, 0xc2b2ae3d27d4eb4full, {}};

// How blocks are hashed. The seed is for kXxHash alone: with a random one nobody outside can construct blocks that all
// land in one place of the index. SHA-256 is the same in every process, for caches that several processes share.
struct BlockHashSpec {
  PrefixHashAlgo algo = PrefixHashAlgo::kXxHash;
  uint64_t seed = 0;
};

// The message is the parent's digest, the tokens as little-endian 32-bit numbers, the extra keys (may be empty). All
// blocks of an index have one number of tokens, so the parts cannot be confused. Any thread.
BlockHash HashBlock(const BlockHash& parent, std::span<const TokenId> tokens, std::string_view extra_keys,
                    const BlockHashSpec& spec = {});

}  // namespace fastllm
