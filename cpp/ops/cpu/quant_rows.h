// Rows of x in 8 bits, and the panels of a weight against them: what the ops over quantised weights share.
#pragma once

#include <cstddef>
#include <vector>

#include "ops/cpu/parallel.h"
#include "ops/cpu/quant_kernels.h"

namespace fastllm::ops::cpu {

// The planes that p's rows need for its weights, in `buffer`, which grows as it must and which one calling thread
// keeps.
QuantRows LayRows(const QuantLinearParams& p, std::vector<std::byte>& buffer);

// Rounds the rows `share` of x, [rows.num_rows, rows.k].
void QuantizeRows(const QuantKernels& kernels, const float* x, const QuantRows& rows, Share share);

// The rows of member `index` of `count`: whole tiles.
Share ShareOfRows(int32_t rows, int32_t index, int32_t count);

// How many rows of k values stay in a core's cache while a weight passes by: a multiple of the tile.
int32_t RowsAtOnce(int32_t k);

// Panels [share.begin, share.end) of all parts, counted one part after the other, against all rows.
void MultiplyPanels(const QuantKernels& kernels, const QuantLinearParams& p, const QuantRows& rows, Share share);

// Nanoseconds of one core: rounding; the larger of 300 G products a second and 16 bytes a nanosecond.
inline int64_t QuantizeWork(int64_t rows, int64_t k) { return rows * k / 4; }
inline int64_t ProductWork(int64_t rows, int64_t n, int64_t k) {
  const int64_t elements = n * k, by_rows = elements * rows / 150, by_bytes = elements / 24;
  return by_rows > by_bytes ? by_rows : by_bytes;
}

}  // namespace fastllm::ops::cpu
