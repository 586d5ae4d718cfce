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

// What is asked for where cuBLASLt is the faster (cpp/runtime/device/linear_choice.h) is only right, not fast.
inline DenseChoice ChooseDense(int32_t rows) {
  if (rows <= 32) return {DenseTile::k128x32, {DenseCut::kLine, 1}};
  if (rows <= 64) return {DenseTile::k128x64, {DenseCut::kLine, 1}};
  if (rows <= 128) return {DenseTile::k128x128, {DenseCut::kLine, 1}};
  if (rows <= 512) return {DenseTile::k128x256, {DenseCut::kLine, 1}};
  return {DenseTile::k256x128, {DenseCut::kWhole, 4}};
}

}  // namespace fastllm::cuda
