// What a warp of the mma.sync prefill kernel (prefill.cuh) does with one tile of K and V.
#pragma once

#include "cuda/attention/prefill_place.cuh"

namespace fastllm::cuda {

// A warp's accumulators. Element e of a fragment is row lane / 4 + 8 (e / 2), column 2 (lane % 4) + e % 2.
template <int kHeadDim>
struct PrefillState {
  static constexpr int kRowTiles = PrefillShape<kHeadDim>::kRowTiles;
  float o[kRowTiles][kHeadDim / 8][4];
  float m[kRowTiles][2];
  float l[kRowTiles][2];
};

template <typename T, int kHeadDim>
__device__ __forceinline__ void Scores(
    float (&x)[PrefillShape<kHeadDim>::kRowTiles][PrefillShape<kHeadDim>::kCols / 8][4], uint32_t q, uint32_t k) {
  using Shape = PrefillShape<kHeadDim>;
  const int lane = threadIdx.x & 31;
  const int warp = threadIdx.x >> 5;
#pragma unroll
  for (int d = 0; d < kHeadDim / 16; ++d) {
    uint32_t a[Shape::kRowTiles][4];
#pragma unroll
    for (int t = 0; t < Shape::kRowTiles; ++t) {
      LoadMatrix4(a[t], q + TileOffset<kHeadDim>((warp * Shape::kRowTiles + t) * 16 + lane % 16, 2 * d + lane / 16));
    }
#pragma unroll
    for (int n = 0; n < Shape::kCols / 16; ++n) {
      uint32_t b[4];
      LoadMatrix4(b, k + TileOffset<kHeadDim>(n * 16 + lane % 8 + lane / 16 * 8, 2 * d + (lane / 8 & 1)));
#pragma unroll
      for (int t = 0; t < Shape::kRowTiles; ++t) {
        Mma16816<T>(x[t][2 * n], a[t], b[0], b[1]);
        Mma16816<T>(x[t][2 * n + 1], a[t], b[2], b[3]);
      }
    }
  }
}

template <int kHeadDim, int kTiles>
__device__ __forceinline__ void OnlineSoftmax(PrefillState<kHeadDim>& s, int t, float (&x)[kTiles][4],
                                              float scale_log2) {
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    float top = s.m[t][j];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) top = fmaxf(top, fmaxf(x[n][2 * j], x[n][2 * j + 1]));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    // A row that has seen nothing yet, its window being further on: all its weights are 2^-inf.
    const float shift = top == -INFINITY ? 0.0f : top * scale_log2;
    const float alpha = Exp2(fmaf(s.m[t][j], scale_log2, -shift));
    s.m[t][j] = top;
    float sum = 0.0f;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int e = 2 * j; e < 2 * j + 2; ++e) {
        x[n][e] = Exp2(fmaf(x[n][e], scale_log2, -shift));
        sum += x[n][e];
      }
    }
    s.l[t][j] = s.l[t][j] * alpha + sum;
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n) {
      s.o[t][n][2 * j] *= alpha;
      s.o[t][n][2 * j + 1] *= alpha;
    }
  }
}

template <typename T, int kHeadDim>
__device__ __forceinline__ void AddValues(
    PrefillState<kHeadDim>& s,
    const float (&x)[PrefillShape<kHeadDim>::kRowTiles][PrefillShape<kHeadDim>::kCols / 8][4], uint32_t v) {
  using Shape = PrefillShape<kHeadDim>;
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int k = 0; k < Shape::kCols / 16; ++k) {
    uint32_t p[Shape::kRowTiles][4];
#pragma unroll
    for (int t = 0; t < Shape::kRowTiles; ++t) {
      p[t][0] = PackTwo<T>(x[t][2 * k][0], x[t][2 * k][1]);
      p[t][1] = PackTwo<T>(x[t][2 * k][2], x[t][2 * k][3]);
      p[t][2] = PackTwo<T>(x[t][2 * k + 1][0], x[t][2 * k + 1][1]);
      p[t][3] = PackTwo<T>(x[t][2 * k + 1][2], x[t][2 * k + 1][3]);
    }
#pragma unroll
    for (int n = 0; n < kHeadDim / 16; ++n) {
      uint32_t b[4];
      LoadMatrix4Transposed(b, v + TileOffset<kHeadDim>(k * 16 + lane % 16, 2 * n + lane / 16));
#pragma unroll
      for (int t = 0; t < Shape::kRowTiles; ++t) {
        Mma16816<T>(s.o[t][2 * n], p[t], b[0], b[1]);
        Mma16816<T>(s.o[t][2 * n + 1], p[t], b[2], b[3]);
      }
    }
  }
}

}  // namespace fastllm::cuda
