// The linear op: its kernel table (one kernel per instruction set) and its driver. Built like kernels.h and drive.h.
#pragma once

#include <cstdint>

#include "ops/contract/linear.h"

namespace fastllm::ops::cpu {

// Rows of the weight that one call of the kernel takes at most.
inline constexpr int32_t kLinearPanel = 16;

// out rows [row_begin, row_end) for weight rows [n_begin, n_end), at most kLinearPanel of them.
using LinearKernel = void (*)(const LinearParams& p, int32_t row_begin, int32_t row_end, int32_t n_begin,
                              int32_t n_end);

void PlainLinear(const LinearParams& p, int32_t row_begin, int32_t row_end, int32_t n_begin, int32_t n_end);
extern const LinearKernel kAvx2Linear;
extern const LinearKernel kAvx512Linear;

void RunLinear(LinearKernel kernel, const LinearParams& p, const OpContext& ctx);

}  // namespace fastllm::ops::cpu
