// What quant_bench and arms_bench multiply by: the shapes of SmolLM2-135M and a pool of weights.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>

namespace fastllm::ops {

struct Shape {
  const char* name;
  int n, k;
};
inline constexpr Shape kShapes[] = {
    {"qkv", 960, 576}, {"o", 576, 576}, {"gate_up", 3072, 576}, {"down", 576, 1536}, {"head", 49152, 576}};

// Room for copies of a weight, so that each call reads it from memory: random 16-bit words with the bits of `set` in
// each, and none outside of `mask` and `set`. In huge pages, as the engine keeps weights. bytes: a multiple of 8.
inline uint8_t* RandomPool(int64_t bytes, uint16_t mask, uint16_t set) {
  void* pool = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pool == MAP_FAILED) std::abort();
  madvise(pool, bytes, MADV_HUGEPAGE);
  constexpr uint64_t kEach = 0x0001000100010001ull;
  std::mt19937_64 rng(3);
  for (int64_t i = 0; i < bytes; i += 8) {
    const uint64_t v = (rng() & mask * kEach) | set * kEach;
    std::memcpy(static_cast<uint8_t*>(pool) + i, &v, 8);
  }
  return static_cast<uint8_t*>(pool);
}

}  // namespace fastllm::ops
