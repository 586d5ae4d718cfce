// What a warp of the decode kernel (decode.cuh) does with one tile of 16 positions.
#pragma once

#include "cuda/attention/decode_fragments.cuh"

namespace fastllm::cuda {

// The state of one pair in one warp. Column 2 (lane % 4) + j of head tile n is in element j of m and l.
template <int kHeadDim, int kHeadTiles>
struct DecodeState {
  uint32_t q[kHeadTiles][kHeadDim / 16][2];
  float o[kHeadTiles][kHeadDim / 16][4];
  float m[kHeadTiles][2];
  float l[kHeadTiles][2];
};

template <typename T, typename KV, int kHeadDim, int kHeadTiles>
__device__ __forceinline__ void StartPair(DecodeState<kHeadDim, kHeadTiles>& s, const DecodeArgs<T, KV>& a,
                                          int32_t token, int32_t kv_head) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int n = 0; n < kHeadTiles; ++n) {
    const int head = n * 8 + lane / 4;
    const T* q = a.q + token * a.q_stride + (static_cast<int64_t>(kv_head) * a.group + head) * kHeadDim +
                 KeyOrder<KV>::First(lane);
#pragma unroll
    for (int d = 0; d < kHeadDim / 16; ++d) {
      s.q[n][d][0] = head < a.group ? *reinterpret_cast<const uint32_t*>(q + d * 16) : 0u;
      s.q[n][d][1] = head < a.group ? *reinterpret_cast<const uint32_t*>(q + d * 16 + KeyOrder<KV>::kSecond) : 0u;
#pragma unroll
      for (int e = 0; e < 4; ++e) s.o[n][d][e] = 0.0f;
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      s.m[n][j] = -INFINITY;
      s.l[n][j] = 0.0f;
    }
  }
}

// New maximum, weights of the tile's scores, and the P^T fragments of one head tile.
template <typename T, int kHeadDim, int kHeadTiles>
__device__ __forceinline__ void Softmax(DecodeState<kHeadDim, kHeadTiles>& s, int n, float (&x)[4], uint32_t (&p)[2]) {
  float alpha[2];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    float top = fmaxf(x[j], x[j + 2]);
#pragma unroll
    for (int d = 4; d < 32; d *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, d));
    top = fmaxf(top, s.m[n][j]);
    alpha[j] = Exp2(s.m[n][j] - top);
    s.m[n][j] = top;
    x[j] = Exp2(x[j] - top);
    x[j + 2] = Exp2(x[j + 2] - top);
    s.l[n][j] = s.l[n][j] * alpha[j] + (x[j] + x[j + 2]);
  }
  if (__any_sync(0xffffffffu, alpha[0] < 1.0f || alpha[1] < 1.0f)) {
#pragma unroll
    for (int d = 0; d < kHeadDim / 16; ++d) {
#pragma unroll
      for (int e = 0; e < 4; ++e) s.o[n][d][e] *= alpha[e & 1];
    }
  }
  p[0] = TransposeMatrix(PackTwo<T>(x[0], x[1]));
  p[1] = TransposeMatrix(PackTwo<T>(x[2], x[3]));
}

// Rows of the tile before `unseen` are outside the window, those from `valid_rows` on past the end.
template <typename T, typename KV, int kHeadDim, int kHeadTiles>
__device__ __forceinline__ void DoTile(DecodeState<kHeadDim, kHeadTiles>& s, uint32_t stage, int32_t unseen,
                                       int32_t valid_rows, const DecodeArgs<T, KV>& args) {
  const int lane = threadIdx.x & 31;
  float x[kHeadTiles][4] = {};
#pragma unroll
  for (int d = 0; d < kHeadDim / 16; ++d) {
    uint32_t a[4];
    LoadKeyFragment<T, KV, kHeadDim>(a, stage, d);
#pragma unroll
    for (int n = 0; n < kHeadTiles; ++n) Mma16816<T>(x[n], a, s.q[n][d][0], s.q[n][d][1]);
  }
  uint32_t p[kHeadTiles][2];
#pragma unroll
  for (int n = 0; n < kHeadTiles; ++n) {
    if (args.cap_inverse > 0.0f) {
#pragma unroll
      for (int e = 0; e < 4; ++e) x[n][e] = TanhClose(x[n][e] * args.cap_inverse);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int row = lane / 4 + (e >= 2 ? 8 : 0);
      x[n][e] = row < valid_rows && row >= unseen ? x[n][e] * args.scale_log2 : -INFINITY;
    }
    Softmax<T>(s, n, x[n], p[n]);
  }
  const uint32_t v = stage + kTileTokens * kHeadDim * static_cast<uint32_t>(sizeof(KV));
#pragma unroll
  for (int d = 0; d < kHeadDim / 16; ++d) {
    uint32_t a[4];
    LoadValueFragment<T, KV, kHeadDim>(a, v, d);
#pragma unroll
    for (int n = 0; n < kHeadTiles; ++n) Mma16816<T>(s.o[n][d], a, p[n][0], p[n][1]);
  }
}

}  // namespace fastllm::cuda
