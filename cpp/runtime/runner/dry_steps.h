// Steps of no request, which show what a step needs and make ready what the first one would wait for.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/runner/batch_state.h"

namespace fastllm::runtime {

struct DryShape {
  int32_t tokens = 0;
  int32_t seqs = 0;  // which all sample

  bool operator==(const DryShape&) const = default;
};

// Sequences of the largest step.
int32_t MostDrySeqs(const BatchLimits& limits);

// The steps after which no kernel is to be loaded and no algorithm chosen by those that serving has most: decodes of
// each size of DecodeLadder, prompts beside them of each of PlanSizes up to 1,024 tokens, and one prompt of each power
// of two up to `longest`. In this order, ascending.
std::vector<DryShape> DrySteps(const BatchLimits& limits, int32_t longest);

}  // namespace fastllm::runtime
