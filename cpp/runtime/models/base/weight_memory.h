// The memory of a model's parameters.
#pragma once

#include "fastllm/status.h"
#include "runtime/nn/param.h"
#include "runtime/tensor/placement.h"

namespace fastllm::runtime {

// One slab for all parameters, which have their sizes and, where they are packed, their formats; each keeps it alive.
// kResourceExhausted says what they need and what is free.
Status AllocateWeights(const Placement& placement, ParamSet& params);

// kInvalidArgument for a share of a matrix that becomes 8-bit blocks as it is loaded, and is not whole blocks.
Status CheckShare(const Param& param, bool quantize_int8);

}  // namespace fastllm::runtime
