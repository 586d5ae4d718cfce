// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011):
// ten rounds of a 4 x 32 bit block function keyed by 64 bits. It has no state, so the number of a token is a function
// of (seed, counter) and nothing else: not of the batch, the thread, or what was drawn before.
#pragma once

#include <array>
#include <cstdint>

namespace fastllm::ops::cpu {

inline std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> c, uint32_t k0, uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

// A number of [0, 1) on the grid of 2^-53: key = seed, counter block = (counter low, counter high, stream, 0), bits =
// the first two words of the block, the first word highest. Numbers of different streams are independent.
inline double UniformDraw(uint64_t seed, uint64_t counter, uint32_t stream = 0) {
  const auto x = Philox4x32({static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), stream, 0},
                            static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  const uint64_t bits = (uint64_t{x[0]} << 32 | x[1]) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

}  // namespace fastllm::ops::cpu
