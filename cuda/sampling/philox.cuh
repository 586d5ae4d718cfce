// Philox4x32-10 (Salmon et al., SC 2011), the same draw as the CPU arm: cpp/ops/cpu/philox.h.
#pragma once

#include <cstdint>

namespace fastllm::cuda {

// A number of [0, 1) on the grid of 2^-53 from (seed, counter) alone.
__device__ inline double UniformDraw(uint64_t seed, uint64_t counter) {
  uint32_t c0 = static_cast<uint32_t>(counter), c1 = static_cast<uint32_t>(counter >> 32), c2 = 0, c3 = 0;
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(0xD2511F53u) * c0;
    const uint64_t p1 = static_cast<uint64_t>(0xCD9E8D57u) * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(p1);
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return static_cast<double>((static_cast<uint64_t>(c0) << 32 | c1) >> 11) * 0x1p-53;
}

}  // namespace fastllm::cuda
