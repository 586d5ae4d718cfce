// Which backend takes what in a build that has both, by measurement (bench/RESULTS.md, "Attention: three backends").
// To measure again: `cuda_bench cuda.decode` and `cuda_bench cuda.prefill`, whose lines come in pairs.
#pragma once

#include <cstdint>

#include "cuda/attention/plan.h"

namespace fastllm::cuda {

// One line for each shape in which FlashInfer won by more than the noise (1 %). Prefill: none, ours is 5 to 90 % ahead.
struct FlashInferDecodeRule {
  int32_t head_dim;
  int32_t least_group;  // query heads per KV head
};
inline constexpr FlashInferDecodeRule kFlashInferDecodes[] = {
    // 64/4 heads, ctx 4096, us, ours / FlashInfer: B=1 19.3 / 11.8, B=8 45.9 / 28.9, B=64 148 / 129: our kernel does 16
    // heads in two tiles of 8.
    {128, 9},
};

inline constexpr bool DecodeOnFlashInfer(int32_t head_dim, int32_t group) {
  for (const FlashInferDecodeRule& rule : kFlashInferDecodes) {
    if (rule.head_dim == head_dim && group >= rule.least_group && group <= MaxDecodeGroup(head_dim)) return true;
  }
  return false;
}

}  // namespace fastllm::cuda
