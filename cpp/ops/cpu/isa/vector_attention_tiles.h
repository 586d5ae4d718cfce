// The inner tiles of attention: scores of query rows against keys, weights times values.
#pragma once

#include "ops/cpu/isa/vector_kernels.h"

namespace fastllm::ops::cpu {
namespace {

// Where the item's pieces live in scratch, or those of some of its rows; rows are (token, head of the group),
// token-major.
struct Tile {
  int32_t rows;
  int32_t first_row;  // of these rows in the item
  int32_t group;
  int32_t dim;
  int32_t stride;     // dim padded to kAttentionPad
  int32_t first_pos;  // position of row 0
  int32_t window;     // 0: none
  float softcap;      // 0: none
  float* q;           // [rows, stride], times scale, zero padded
  float* acc;         // [rows, stride]
  float* scores;      // [rows, kAttentionChunk], of the rows that are worked on
  float* max;         // [rows]
  float* sum;         // [rows]
  float* wide;        // WideFloats() for a chunk of a 16-bit cache
};

// The first row that sees position `pos`.
inline int32_t FirstRow(const Tile& t, int32_t pos) { return pos > t.first_pos ? (pos - t.first_pos) * t.group : 0; }

// One past the last row that sees a position before `pos`.
inline int32_t EndRow(const Tile& t, int32_t pos) {
  if (t.window <= 0) return t.rows;
  const int64_t end = (static_cast<int64_t>(pos) + t.window - 1 - t.first_pos) * t.group;
  return end < 0 ? 0 : end < t.rows ? static_cast<int32_t>(end) : t.rows;
}

// Rows of a tile that meet a chunk together, whole tokens: few enough for what they take to stay in the first-level
// cache next to it.
inline int32_t BlockRows(const Tile& t) { return t.group >= 48 ? t.group : 48 / t.group * t.group; }

// As many rows of the tile, or those that are left, from `row` on, which begins a token.
inline Tile RowsOf(const Tile& t, int32_t row) {
  Tile few = t;
  few.rows = t.rows - row < BlockRows(t) ? t.rows - row : BlockRows(t);
  few.first_row = t.first_row + row;
  few.first_pos += row / t.group;
  few.q += static_cast<int64_t>(row) * t.stride;
  few.acc += static_cast<int64_t>(row) * t.stride;
  few.max += row;
  few.sum += row;
  return few;
}

// Scores of R rows x (kLanes / R) positions.
template <int R>
inline void ScoreTile(const Tile& t, int32_t row, const float* k, const int64_t* offset, int32_t j) {
  constexpr int P = kLanes / R;
  const float* q = t.q + static_cast<int64_t>(row) * t.stride;
  const float* kp[P];
#pragma GCC unroll 16
  for (int i = 0; i < P; ++i) kp[i] = k + offset[j + i];
  Vec a[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) a[i] = Set(0.0f);
  int32_t d = 0;
  for (; d + kLanes <= t.dim; d += kLanes) {
    Vec qv[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) qv[r] = Load(q + r * t.stride + d);
#pragma GCC unroll 16
    for (int i = 0; i < P; ++i) {
      const Vec kv = Load(kp[i] + d);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) a[r * P + i] = Fma(qv[r], kv, a[r * P + i]);
    }
  }
  if (d < t.dim) {
    for (int i = 0; i < P; ++i) {
      const Vec kv = LoadFirst(kp[i] + d, t.dim - d);
      for (int r = 0; r < R; ++r) a[r * P + i] = Fma(Load(q + r * t.stride + d), kv, a[r * P + i]);
    }
  }
  alignas(64) float sums[kLanes];
  Store(sums, SumEach(a));
  float* s = t.scores + static_cast<int64_t>(row) * kAttentionChunk + j;
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) __builtin_memcpy(s + r * kAttentionChunk, sums + r * P, P * sizeof(float));
}

// n positions, the offsets padded with valid ones to a multiple of kLanes.
inline void Scores(const Tile& t, const float* k, const int64_t* offset, int32_t n) {
  int32_t r = 0;
  for (; r + 4 <= t.rows; r += 4) {
    for (int32_t j = 0; j < n; j += kLanes / 4) ScoreTile<4>(t, r, k, offset, j);
  }
  if (r + 2 <= t.rows) {
    for (int32_t j = 0; j < n; j += kLanes / 2) ScoreTile<2>(t, r, k, offset, j);
    r += 2;
  }
  if (r < t.rows) {
    for (int32_t j = 0; j < n; j += kLanes) ScoreTile<1>(t, r, k, offset, j);
  }
}

// acc[row..row+R) += weights x V over positions [j0, j1), C vectors of the head from element d.
template <int R, int C>
inline void ValueTile(const Tile& t, int32_t row, const float* v, const int64_t* offset, int32_t j0, int32_t j1,
                      int32_t d) {
  float* acc = t.acc + static_cast<int64_t>(row) * t.stride + d;
  const float* w = t.scores + static_cast<int64_t>(row) * kAttentionChunk;
  Vec a[R][C];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) a[r][c] = Load(acc + r * t.stride + c * kLanes);
  }
  for (int32_t j = j0; j < j1; ++j) {
    const float* vj = v + offset[j] + d;
    Vec vv[C];
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) vv[c] = Load(vj + c * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const Vec wr = Set(w[r * kAttentionChunk + j]);
#pragma GCC unroll 16
      for (int c = 0; c < C; ++c) a[r][c] = Fma(wr, vv[c], a[r][c]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) Store(acc + r * t.stride + c * kLanes, a[r][c]);
  }
}

// The last, partial vector of the head.
template <int R>
inline void ValueTail(const Tile& t, int32_t row, const float* v, const int64_t* offset, int32_t j0, int32_t j1,
                      int32_t d) {
  for (int r = 0; r < R; ++r) {
    float* acc = t.acc + static_cast<int64_t>(row + r) * t.stride + d;
    const float* w = t.scores + static_cast<int64_t>(row + r) * kAttentionChunk;
    Vec a = Load(acc);
    for (int32_t j = j0; j < j1; ++j) a = Fma(Set(w[j]), LoadFirst(v + offset[j] + d, t.dim - d), a);
    Store(acc, a);
  }
}

template <int R>
inline void ValueRows(const Tile& t, int32_t row, const float* v, const int64_t* offset, int32_t j0, int32_t j1) {
  if (j0 >= j1) return;
  int32_t d = 0;
  for (; d + 4 * kLanes <= t.dim; d += 4 * kLanes) ValueTile<R, 4>(t, row, v, offset, j0, j1, d);
  for (; d + kLanes <= t.dim; d += kLanes) ValueTile<R, 1>(t, row, v, offset, j0, j1, d);
  if (d < t.dim) ValueTail<R>(t, row, v, offset, j0, j1, d);
}

}  // namespace
}  // namespace fastllm::ops::cpu
