#pragma once

#include "ops/contract/linear.h"

namespace fastllm::ops {

// linear, or with `gated` linear_silu_mul, for many rows, where the backend needs memory for what its blocks leave each
// other.
struct DenseLinearParams {
  LinearParams linear;
  bool gated = false;
  // At least kDenseWorkspaceBytes of device memory, aligned to 16 bytes, zeroed once; a launch leaves it usable for the
  // next one on the same stream.
  void* workspace = nullptr;
};
using DenseLinearFn = void (*)(const DenseLinearParams&, const OpContext&);

// Whether linear_silu_mul of kFeatureAnyRows is faster than the two ops apart at so many rows (bench/RESULTS.md: not at
// 512, where cuBLASLt has the better tiles).
inline constexpr bool GatesRows(int32_t rows) { return rows <= 256 || rows > 896; }

// A tile of 128 KiB for each block of a launch, and flags. A block has a multiprocessor of its own.
inline constexpr int32_t kDenseBlocks = 160;
inline constexpr int64_t kDenseFlagBytes = 8192;
inline constexpr int64_t kDenseWorkspaceBytes = kDenseFlagBytes + (int64_t{kDenseBlocks} << 17);

}  // namespace fastllm::ops
