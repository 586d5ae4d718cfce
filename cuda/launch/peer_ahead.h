// What the launchers of sums over ranks share.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/contract/fused_linear.h"

namespace fastllm::cuda {

// What a kernel whose ranks wait for each other fetches of the next product's weight: as much as the memory delivers
// meanwhile. Nothing where there are many rows, which leave it no room in the L2, or few, whose blocks are too few to
// ask for so much in time.
inline ops::NextWeight AheadOfPeers(const ops::NextWeight& next, int32_t rows) {
  constexpr int64_t kMostBytes = int64_t{16} << 20;
  constexpr int32_t kLeastRows = 9, kMostRows = 512;
  if (rows < kLeastRows || rows > kMostRows) return {};
  return {next.data, std::min(next.bytes, kMostBytes) / 16 * 16};
}

}  // namespace fastllm::cuda
