// XXH3, 128-bit variant with a seed: a fast non-cryptographic hash. Written from the published algorithm
// (xxhash_spec.md of the xxHash project, version 0.8); gives the same values as every other implementation of it.
#pragma once

#include <cstdint>
#include <span>

namespace fastllm {

// The digest as a number: hi * 2^64 + lo. Its canonical byte form is that number in big-endian order.
struct Xxh3Digest {
  uint64_t lo = 0;
  uint64_t hi = 0;
  friend bool operator==(const Xxh3Digest&, const Xxh3Digest&) = default;
};

// Any length, any thread. Not safe against an attacker who knows the seed: equal digests must be checked by content.
Xxh3Digest Xxh3Hash128(std::span<const unsigned char> data, uint64_t seed);

}  // namespace fastllm
