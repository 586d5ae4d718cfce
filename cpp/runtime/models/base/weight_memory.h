// The memory of a model's parameters.
#pragma once

#include "fastllm/status.h"
#include "runtime/nn/param.h"
#include "runtime/tensor/placement.h"

namespace fastllm::runtime {

// One slab for all parameters, which have their sizes and, where they are packed, their formats; each keeps it alive.
// kResourceExhausted says what they need and what is free.
Status AllocateWeights(const Placement& placement, ParamSet& params);

// kUnimplemented for a parameter in 8-bit floats that is cut by columns: a row has one scale.
Status CheckWhole(const Param& param);

}  // namespace fastllm::runtime
