// From 16-bit tensors of a checkpoint to the layout that the linear over 16-bit weights computes from.
#pragma once

#include <cstdint>
#include <optional>

#include "ops/contract/half_linear.h"
#include "runtime/weights/tensor_source.h"

namespace fastllm::runtime {

// The type in which a matrix of this storage type is computed with as it is stored; nullopt: it has none of 16 bits.
std::optional<ops::DType> HalfTypeOf(WeightType type);

// What of a matrix is packed: all of it, or some rows and columns.
struct MatrixShare {
  int64_t first_row = 0;
  int64_t rows = 0;
  int64_t first_col = 0;
  int64_t cols = 0;
};
inline MatrixShare WholeOf(const TensorInfo& matrix) { return {0, matrix.shape[0], 0, matrix.shape[1]}; }

// Packs panels [panel_begin, panel_end) of a share [n, k] of a matrix. `out` is the start of the whole packed weight
// (ops::HalfBytes long) and holds zeros. Callers spread panels over threads.
void PackHalfPanels(const TensorInfo& tensor, const MatrixShare& share, int64_t panel_begin, int64_t panel_end,
                    uint16_t* out);

}  // namespace fastllm::runtime
