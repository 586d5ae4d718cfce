// The token list of a DRY penalty (contract/logits.h).
#pragma once

#include <cstdint>
#include <vector>

#include "ops/contract/logits.h"

namespace fastllm::ops::cpu {

struct DryScratch {
  std::vector<int32_t> match;    // of each place of the history
  std::vector<int32_t> longest;  // of each token; 0 between calls
  std::vector<int32_t> touched;  // tokens whose longest is not 0

  void Reserve(const DryRow& row, int32_t vocab);
};

// x[t] -= penalty for each token that would prolong a repetition. Linear in the history looked at.
void ApplyDry(const DryRow& row, float* x, int32_t vocab, DryScratch& scratch);

}  // namespace fastllm::ops::cpu
