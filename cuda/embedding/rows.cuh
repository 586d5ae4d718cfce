// Row copies: out[i, :] = in[rows[i] - first, :]. Embedding look-up and the gather of rows are the same kernel.
#pragma once

#include <cstdint>

namespace fastllm::cuda {

// One block per output row (blockIdx.x) and slice of it (blockIdx.y); without `rows` all take row 0. Unit is what one
// thread moves. A row index outside [0, num_in) yields zeros: device code cannot refuse, and must not read past the
// table.
template <typename Unit>
__global__ void __launch_bounds__(256)
    CopyRowsKernel(Unit* __restrict__ out, const Unit* __restrict__ in, const int32_t* __restrict__ rows, int32_t first,
                   int32_t num_in, int32_t units) {
  const int32_t row = rows == nullptr ? 0 : rows[blockIdx.x] - first;
  const bool inside = row >= 0 && row < num_in;
  const Unit* from = in + static_cast<int64_t>(inside ? row : 0) * units;
  Unit* to = out + static_cast<int64_t>(blockIdx.x) * units;
  const int32_t stride = blockDim.x * gridDim.y;
  int32_t i = blockIdx.y * blockDim.x + threadIdx.x;
  for (; i + 3 * stride < units; i += 4 * stride) {
    Unit x[4];
#pragma unroll
    for (int u = 0; u < 4; ++u) x[u] = inside ? from[i + u * stride] : Unit{};
#pragma unroll
    for (int u = 0; u < 4; ++u) to[i + u * stride] = x[u];
  }
  for (; i < units; i += stride) to[i] = inside ? from[i] : Unit{};
}

}  // namespace fastllm::cuda
