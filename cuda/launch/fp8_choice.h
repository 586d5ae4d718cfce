// How the kernels of 8-bit floats are launched: rules from measurements on an H200 (bench/RESULTS.md).
#pragma once

#include <cstdint>

#include "cuda/gemm/dense_cut.h"

namespace fastllm::cuda {

// From so many rows on, a kernel lets the next one begin before the one before it is done.
inline constexpr int32_t kFp8EarlyRows = 9;

// Whether silu_mul_fp8 has blocks that stay for several rows: where there are many. Up to four for each multiprocessor
// it is no faster, and its rings keep the product that follows from starting beside it.
inline bool StaysForFp8Rows(int32_t rows, int32_t multiprocessors) { return rows > 4 * multiprocessors; }

struct Fp8Choice {
  int32_t tokens = 0;  // of a tile
  int32_t splits = 1;  // blocks that share k, a cluster
  int32_t blocks = 1;  // that share a multiprocessor
};

// tiles: of the output's columns; steps: of k. Up to 64 rows splits depends on tiles and steps alone. Clusters of four
// blocks that have a multiprocessor each do not fill the device.
inline Fp8Choice ChooseFp8(int32_t m, int32_t tiles, int32_t steps, int32_t multiprocessors) {
  Fp8Choice c;
  for (const int32_t tokens : {8, 16, 32, 64, 128}) {
    c.tokens = tokens;
    if (tokens >= m) break;
  }
  const int32_t most = steps >= 64 || c.tokens == 128 ? 3 : 2;
  while (c.splits < most && tiles * (c.splits + 1) <= multiprocessors && steps >= c.splits * 4) ++c.splits;
  // A ring of twice the depth, or twice the blocks: more of them than multiprocessors, or few bytes to each.
  c.blocks = c.tokens <= 64 && (tiles * c.splits > multiprocessors || c.tokens <= 8) ? 2 : 1;
  return c;
}

// Stages of the weight that a block asks the L2 for beyond its ring; as FewAhead() (dense_choice.h).
inline int32_t Fp8Ahead(int32_t n, int32_t k) { return n == k ? 8 : 0; }

enum class Fp8DenseTile {
  k128x128,
  k128x128Pair,  // blocks share the weight
  k128x192,      // x
};

struct Fp8DenseChoice {
  Fp8DenseTile tile;
  DenseTiling tiling;
};

// Tiles are cut where k is long and there are few of them, and where the result is gated and so half as wide. More than
// 256 rows are cuBLASLt's (cpp/runtime/device/fp8_choice.h): here they are only right, not fast.
inline Fp8DenseChoice ChooseFp8Dense(int32_t rows, int32_t n, int32_t k, bool gated) {
  const bool cut = gated || k >= 2 * n;
  const DenseTiling tiling = cut ? DenseTiling{DenseCut::kLine, 1} : DenseTiling{DenseCut::kWhole, 4};
  if (rows <= 128) return {Fp8DenseTile::k128x128, tiling};
  if (rows <= 192 && (cut || n >= 4 * k)) return {Fp8DenseTile::k128x192, tiling};
  return {Fp8DenseTile::k128x128Pair, tiling};
}

}  // namespace fastllm::cuda
