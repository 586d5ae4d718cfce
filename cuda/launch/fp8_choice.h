// How the products of 8-bit floats for few rows are launched: rules from measurements on an H200 (bench/RESULTS.md).
#pragma once

#include <cstdint>

namespace fastllm::cuda {

// From so many rows on, a kernel lets the next one begin before the one before it is done.
inline constexpr int32_t kFp8EarlyRows = 9;

struct Fp8Choice {
  int32_t tokens = 0;  // of a tile
  int32_t splits = 1;  // blocks that share k, a cluster
};

// tiles: of the output's columns; steps: of k. Up to 64 rows splits depends on tiles and steps alone.
inline Fp8Choice ChooseFp8(int32_t m, int32_t tiles, int32_t steps, int32_t multiprocessors) {
  Fp8Choice c;
  for (const int32_t tokens : {8, 16, 32, 64, 128}) {
    c.tokens = tokens;
    if (tokens >= m) break;
  }
  const int32_t places = c.tokens <= 64 ? 2 * multiprocessors : multiprocessors;
  const int32_t most = c.tokens == 128 ? 2 : 4;
  while (c.splits < most && tiles * c.splits * 2 <= places && steps >= c.splits * 4) c.splits *= 2;
  return c;
}

}  // namespace fastllm::cuda
