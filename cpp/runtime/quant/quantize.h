// Matrices of floats to 8-bit blocks when a model is loaded.
#pragma once

#include <cstdint>

#include "ops/contract/quant_weight.h"
#include "runtime/quant/pack_half.h"
#include "runtime/weights/tensor_source.h"

namespace fastllm::runtime {

// What they become.
inline constexpr WeightType kInt8Type = WeightType::kQ8_0;
inline constexpr ops::QuantFormat kInt8Format = ops::QuantFormat::kQ8_0;

// k values to k / 32 blocks of Q8_0, by the rule of the GGUF format: the scale is amax / 127, stored as float16, and a
// value is rounded (halves away from zero) after division by the scale before its own rounding. A NaN, an infinity or a
// magnitude above 8.3e6 gives a block of NaN.
void QuantizeQ8_0(const float* values, int64_t k, uint8_t* blocks);

// As PackPanels() (pack.h), from a share [n, k] of a matrix of floats: whole blocks, so that it has the bits of the
// whole's.
void QuantizePanels(const TensorInfo& tensor, const MatrixShare& share, int64_t panel_begin, int64_t panel_end,
                    uint8_t* out);

}  // namespace fastllm::runtime
