// Which instance of the kernel of dense_linear takes a product: rules from measurements on an H200 (bench/RESULTS.md).
#pragma once

#include <cstdint>

#include "cuda/gemm/dense_cut.h"

namespace fastllm::cuda {

enum class DenseTile { k128x32, k128x64, k128x128, k128x256, k256x128 };  // rows of the weight, of x

struct DenseChoice {
  DenseTile tile;
  DenseTiling tiling;
};

// Most rows of the kernel for few (cuda/gemm/few_stream.cuh).
inline constexpr int32_t kFewRows = 64;

// Blocks that share k, a cluster; 0: the product is not for that kernel. tiles: of 128 rows of the weight; steps: of k.
// Each block has a multiprocessor to itself, and clusters of four would not all fit at once. A product of few tiles is
// cut more finely by the kernel for many rows.
inline int32_t FewSplits(int32_t rows, int32_t tiles, int32_t steps, int32_t multiprocessors) {
  if (rows <= 16 || rows > kFewRows || tiles > multiprocessors) return 0;
  int32_t splits = 1;
  while (splits < 3 && tiles * (splits + 1) <= multiprocessors && steps >= (splits + 1) * 4) ++splits;
  return tiles * splits >= multiprocessors / 2 ? splits : 0;
}

// Stages of the weight that a block asks the L2 for beyond its ring. A square product is o, which stands behind
// attention, whose blocks do not end all at once: the memory has nothing else to do. Elsewhere it is no gain.
inline int32_t FewAhead(int32_t n, int32_t k) { return n == k ? 4 : 0; }

// What is asked for where cuBLASLt is the faster (cpp/runtime/device/linear_choice.h) is only right, not fast.
inline DenseChoice ChooseDense(int32_t rows) {
  if (rows <= 32) return {DenseTile::k128x32, {DenseCut::kLine, 1}};
  if (rows <= 64) return {DenseTile::k128x64, {DenseCut::kLine, 1}};
  if (rows <= 128) return {DenseTile::k128x128, {DenseCut::kLine, 1}};
  if (rows <= 512) return {DenseTile::k128x256, {DenseCut::kLine, 1}};
  return {DenseTile::k256x128, {DenseCut::kWhole, 4}};
}

}  // namespace fastllm::cuda
