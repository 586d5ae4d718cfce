#include "core/kv/block_hash.h"

#include <bit>
#include <cstring>

namespace fastllm {
namespace {

// Odd constants with no structure (digits of sqrt 2 and sqrt 3).
constexpr uint64_t kMulLo = 0x6a09e667f3bcc909ull;
constexpr uint64_t kMulHi = 0xbb67ae8584caa73bull;

// For a fixed word each step is one-to-one in the lane, and for a fixed lane in the word: xor, odd multiplication and
// xor with the own high half can all be undone.
struct Lanes {
  uint64_t lo;
  uint64_t hi;

  void Absorb(uint64_t word) {
    lo = (lo ^ word) * kMulLo;
    lo ^= lo >> 32;
    hi = (hi ^ std::rotl(word, 32)) * kMulHi;
    hi ^= hi >> 29;
  }
};

void AbsorbBytes(Lanes* lanes, const char* data, size_t size) {
  for (; size >= sizeof(uint64_t); data += sizeof(uint64_t), size -= sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, data, sizeof(word));
    lanes->Absorb(word);
  }
  if (size > 0) {
    uint64_t word = 0;
    std::memcpy(&word, data, size);
    lanes->Absorb(word);
  }
}

}  // namespace

BlockHash HashBlock(const BlockHash& parent, std::span<const TokenId> tokens, std::string_view extra_keys) {
  Lanes lanes{parent.lo, parent.hi};
  AbsorbBytes(&lanes, reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes());
  AbsorbBytes(&lanes, extra_keys.data(), extra_keys.size());
  lanes.Absorb((static_cast<uint64_t>(tokens.size()) << 32) ^ extra_keys.size());
  // Each lane depends on the other at the end; two rounds undo nothing of the above (Feistel steps).
  lanes.lo ^= std::rotl(lanes.hi, 23) * kMulHi;
  lanes.hi ^= std::rotl(lanes.lo, 37) * kMulLo;
  return {lanes.lo, lanes.hi};
}

std::string CacheSaltKey(std::string_view cache_salt) {
  return cache_salt.empty() ? std::string() : "salt:" + std::string(cache_salt);
}

}  // namespace fastllm
