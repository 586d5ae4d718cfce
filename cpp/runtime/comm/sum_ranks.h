// SumRanks: the one order in which values of several ranks are added, whoever carries them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "runtime/comm/communicator.h"

namespace fastllm::runtime {

// Element i of every output becomes the sum of element i of all inputs: in order of the inputs, in float32, rounded
// once. Outputs may be inputs. Floating types.
void SumRanks(std::span<const void* const> inputs, std::span<void* const> outputs, int64_t begin, int64_t end,
              CommType type);

// The part [begin, end) of `count` elements that rank `rank` of `size` adds: whole cache lines of float32.
struct RankPart {
  int64_t begin = 0;
  int64_t end = 0;
};
inline RankPart PartOf(int64_t count, int32_t rank, int32_t size) {
  constexpr int64_t kLine = 64;
  const int64_t part = (count / size / kLine + 1) * kLine;
  const int64_t begin = std::min(count, part * rank);
  return {begin, std::min(count, begin + part)};
}

}  // namespace fastllm::runtime
