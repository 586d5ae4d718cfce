// The linear kernel, over the vector names of simd_<isa>.h. Included by one file per instruction set.
//
// Both operands run along k, so an output element is a dot product of two contiguous rows: one vector accumulator over
// k, reduced by SumEach's fixed tree. Tiles of several rows and weight rows only decide how often a loaded vector is
// used, never the order of a sum.
#pragma once

#include "ops/cpu/kernels.h"

namespace fastllm::ops::cpu {
namespace {

constexpr int kLinearRows = kLanes == 16 ? 4 : 2;  // rows of x in the largest tile: 16 or 8 accumulators
constexpr int kLinearCols = 4;                     // weight rows in it

// Sums of R x C dot products into sums[r * C + c]; R * C <= kLanes.
template <int R, int C>
inline void DotTile(const float* x, const float* w, int64_t k, float* sums) {
  static_assert(R * C <= kLanes, "one reduction for a tile");
  Vec acc[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) acc[i] = Set(0.0f);
  int64_t at = 0;
  for (; at + kLanes <= k; at += kLanes) {
    Vec xs[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) xs[r] = Load(x + r * k + at);
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) {
      const Vec ws = Load(w + c * k + at);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) acc[r * C + c] = Fma(xs[r], ws, acc[r * C + c]);
    }
  }
  if (at < k) {
    const int rest = static_cast<int>(k - at);
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) {
      const Vec ws = LoadFirst(w + c * k + at, rest);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) acc[r * C + c] = Fma(LoadFirst(x + r * k + at, rest), ws, acc[r * C + c]);
    }
  }
  Store(sums, SumEach(acc));
}

template <int R, int C>
inline void LinearTile(const LinearParams& p, int64_t row, int64_t n) {
  alignas(64) float sums[kLanes];
  const float* x = static_cast<const float*>(p.x) + row * p.k;
  const float* w = static_cast<const float*>(p.weight) + n * p.k;
  const float* bias = static_cast<const float*>(p.bias);
  DotTile<R, C>(x, w, p.k, sums);
  float* out = static_cast<float*>(p.out) + row * p.n + n;
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) out[r * p.n + c] = bias == nullptr ? sums[r * C + c] : sums[r * C + c] + bias[n + c];
  }
}

// All rows against C weight rows from n.
template <int C>
inline void LinearColumns(const LinearParams& p, int64_t row, int64_t row_end, int64_t n) {
  for (; row + kLinearRows <= row_end; row += kLinearRows) LinearTile<kLinearRows, C>(p, row, n);
  for (; row + 2 <= row_end; row += 2) LinearTile<2, C>(p, row, n);
  if (row < row_end) LinearTile<1, C>(p, row, n);
}

void Linear(const LinearParams& p, int32_t row_begin, int32_t row_end, int32_t n_begin, int32_t n_end) {
  int32_t n = n_begin;
  if (row_end - row_begin == 1) {  // nothing to reuse: more weight rows in flight
    for (; n + kLanes <= n_end; n += kLanes) LinearTile<1, kLanes>(p, row_begin, n);
  }
  for (; n + kLinearCols <= n_end; n += kLinearCols) LinearColumns<kLinearCols>(p, row_begin, row_end, n);
  for (; n < n_end; ++n) LinearColumns<1>(p, row_begin, row_end, n);
}

}  // namespace
}  // namespace fastllm::ops::cpu
