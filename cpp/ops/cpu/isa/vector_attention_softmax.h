// Attention's softmax of a chunk: scores to weights, sums and accumulators to the new maximum.
#pragma once

#include "ops/cpu/isa/vector_attention_cache.h"

namespace fastllm::ops::cpu {
namespace {

// tanh within 3e-7, relative: its series to x^15 below 1/2, by e^2|x| above.
inline Vec Tanh(Vec x) {
  const Vec size = Max(x, Sub(Set(0.0f), x));
  const Vec large = Sub(Set(1.0f), Div(Set(2.0f), Add(Exp(Add(size, size)), Set(1.0f))));
  const Vec y = Mul(x, x);
  Vec p = Fma(Set(-1.4558343870513e-3f), y, Set(3.5921280365725e-3f));
  p = Fma(p, y, Set(-8.8632355299022e-3f));
  p = Fma(p, y, Set(2.1869488536155e-2f));
  p = Fma(p, y, Set(-5.3968253968254e-2f));
  p = Fma(p, y, Set(1.3333333333333e-1f));
  p = Fma(p, y, Set(-3.3333333333333e-1f));
  const Vec small = Fma(Mul(p, y), x, x);
  const Vec with_sign = Select(MaskGt(Set(0.0f), x), Sub(Set(0.0f), large), large);
  return Select(MaskGt(Set(0.5f), size), small, with_sign);
}

// Brings the row's sum and accumulator to its new maximum.
inline void Rescale(const Tile& t, int32_t row, float new_max, float chunk_sum) {
  if (new_max == t.max[row]) {
    t.sum[row] += chunk_sum;
    return;
  }
  float lanes[kLanes];
  const Vec correction = Exp(Set(t.max[row] - new_max));
  Store(lanes, correction);
  t.max[row] = new_max;
  t.sum[row] = __builtin_fmaf(t.sum[row], lanes[0], chunk_sum);
  float* acc = t.acc + static_cast<int64_t>(row) * t.stride;
  for (int32_t d = 0; d < t.stride; d += kLanes) Store(acc + d, Mul(Load(acc + d), correction));
}

// Turns the scores of R rows into weights, and brings their sums and accumulators to the new maxima. They see positions
// [first, n) of the chunk, at least one. Side by side, because each step of a row waits for the one before.
template <int R>
inline void SoftmaxRows(const Tile& t, int32_t row, int32_t first, int32_t n) {
  float* s = t.scores + static_cast<int64_t>(row) * kAttentionChunk;
  const int32_t padded = (n + kLanes - 1) / kLanes * kLanes;
  Vec max[R];
  Vec total[R];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    float* of_row = s + r * kAttentionChunk;
    if (t.softcap > 0.0f) {
      const Vec cap = Set(t.softcap);
      for (int32_t j = 0; j < padded; j += kLanes) Store(of_row + j, Mul(cap, Tanh(Div(Load(of_row + j), cap))));
    }
    for (int32_t j = 0; j < first; ++j) of_row[j] = -__builtin_inff();
    for (int32_t j = n; j < padded; ++j) of_row[j] = -__builtin_inff();
    max[r] = Set(t.max[row + r]);
    total[r] = Set(0.0f);
  }
  for (int32_t j = 0; j < padded; j += kLanes) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) max[r] = Max(max[r], Load(s + r * kAttentionChunk + j));
  }
  float new_max[R];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    new_max[r] = ReduceMax(max[r]);
    max[r] = Set(new_max[r]);
  }
  for (int32_t j = 0; j < padded; j += kLanes) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const Vec w = Exp(Sub(Load(s + r * kAttentionChunk + j), max[r]));
      Store(s + r * kAttentionChunk + j, w);
      total[r] = Add(total[r], w);
    }
  }
  float chunk_sum[R];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) chunk_sum[r] = ReduceAdd(total[r]);
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) Rescale(t, row + r, new_max[r], chunk_sum[r]);
}

// The rows of a token see the same positions.
inline void Softmax(const Tile& t, int32_t chunk) {
  for (int32_t r = 0; r < t.rows;) {
    const int32_t mates = t.group - r % t.group;
    const int32_t hidden = Hidden(t, r, chunk);
    const int32_t visible = Visible(t, r, chunk);
    if (mates >= 4) {
      SoftmaxRows<4>(t, r, hidden, visible);
      r += 4;
    } else if (mates == 3) {
      SoftmaxRows<3>(t, r, hidden, visible);
      r += 3;
    } else if (mates == 2) {
      SoftmaxRows<2>(t, r, hidden, visible);
      r += 2;
    } else {
      SoftmaxRows<1>(t, r, hidden, visible);
      r += 1;
    }
  }
}

}  // namespace
}  // namespace fastllm::ops::cpu
