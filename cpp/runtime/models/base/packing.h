// Matrices that are kept packed, for the linears that compute with blocks or 16-bit floats.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/nn/param.h"
#include "runtime/weights/tensor_source.h"

namespace fastllm::runtime {

// Describes the parameter as packed when it is a matrix and all its parts, whose storage types are given, have a packed
// form of one kind: quantised blocks or 16-bit floats.
void DescribeStored(const std::vector<WeightType>& parts, Param* param);

// Describes a matrix of floats as 8-bit blocks, if its rows are whole blocks; says whether.
bool DescribeInt8(const std::vector<WeightType>& parts, Param* param);

// Panels [panel_begin, panel_end) of a part of a parameter that is described so and has its memory, from its tensor.
// Any thread.
void PackPart(const TensorInfo& tensor, const Param& param, int32_t part, int64_t panel_begin, int64_t panel_end);

}  // namespace fastllm::runtime
