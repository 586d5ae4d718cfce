// The memory of a model's parameters.
#pragma once

#include "fastllm/status.h"
#include "runtime/nn/param.h"
#include "runtime/tensor/placement.h"

namespace fastllm::runtime {

// One slab for all parameters, which have their sizes and, where they are packed, their formats; each keeps it alive.
// kResourceExhausted says what they need and what is free.
Status AllocateWeights(const Placement& placement, ParamSet& params);

// kUnimplemented for a share of a parameter that is quantised as it is loaded: to 8-bit floats when it is cut by
// columns (a row has one scale), to 8-bit blocks however it is cut.
Status CheckWhole(const Param& param, bool quantize_int8);

}  // namespace fastllm::runtime
