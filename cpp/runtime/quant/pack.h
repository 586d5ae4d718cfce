// From GGUF blocks to the layout that the quantised linear computes from.
#pragma once

#include <cstdint>
#include <optional>

#include "ops/contract/quant_weight.h"
#include "runtime/weights/tensor_source.h"

namespace fastllm::runtime {

// The packed format of a storage type; nullopt: it is decoded to floats instead.
std::optional<ops::QuantFormat> QuantFormatOf(WeightType type);

// Packs panels [panel_begin, panel_end) of a matrix of n rows of k values, GGUF blocks row-major at any address, rows
// row_bytes apart (0: one behind the other). `out` is the start of the whole packed weight (ops::PackedBytes long) and
// holds zeros. Callers spread panels over threads.
void PackPanels(ops::QuantFormat format, const uint8_t* blocks, int64_t n, int32_t k, int64_t panel_begin,
                int64_t panel_end, uint8_t* out, int64_t row_bytes = 0);

}  // namespace fastllm::runtime
