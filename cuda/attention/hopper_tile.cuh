// What a consumer warpgroup of the Hopper prefill kernel (prefill_hopper.cuh) does with its 64 rows and one tile of K
// or V: products and softmax.
#pragma once

#include "cuda/attention/hopper_shape.cuh"
#include "cuda/common/wgmma.cuh"

namespace fastllm::cuda {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

template <int kHeadDim>
struct HopperState {
  static constexpr int kCols = PrefillCols(kHeadDim);
  static constexpr bool kQInRegisters = HopperShape<kHeadDim>::kQInRegisters;
  uint32_t q[kQInRegisters ? kHeadDim / 16 : 1][4];
  float o[kHeadDim / 2];
  float s[kCols / 2];
  uint32_t p[kCols / 16][4];
  float m[2];  // largest score so far
  float l[2];  // sum of weights of this thread's columns
};

// Before an item's first tile.
template <int kHeadDim>
__device__ __forceinline__ void Clear(HopperState<kHeadDim>& st) {
#pragma unroll
  for (int i = 0; i < kHeadDim / 2; ++i) st.o[i] = 0.0f;
  st.m[0] = st.m[1] = -INFINITY;
  st.l[0] = st.l[1] = 0.0f;
}

// This warp's rows of Q from shared memory. row0: its first row.
template <int kHeadDim>
__device__ __forceinline__ void ReadQueries(HopperState<kHeadDim>& st, uint32_t queries, int row0) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int d = 0; d < kHeadDim / 16; ++d) {
    LoadMatrix4(st.q[d], queries + HopperShape<kHeadDim>::Offset(row0 + lane % 16, 2 * d + lane / 16));
  }
}

// s = Q K^T of this warpgroup's rows, at `queries` if not in registers; issued, not waited for.
template <typename T, int kHeadDim>
__device__ __forceinline__ void IssueScores(HopperState<kHeadDim>& st, uint32_t queries, uint32_t k) {
  using Shape = HopperShape<kHeadDim>;
  const uint64_t a = SwizzledOperand<Shape::kRowBytes>(queries, Shape::kGroupBytes, 16);
  const uint64_t b = SwizzledOperand<Shape::kRowBytes>(k, Shape::kGroupBytes, 16);
#pragma unroll
  for (int d = 0; d < kHeadDim; d += 16) {
    const uint32_t at = d / Shape::kAtom * Shape::kAtomBytes + d % Shape::kAtom * 2;
    if constexpr (Shape::kQInRegisters) {
      MultiplyRegistersByRows<T>(st.s, st.q[d / 16], OperandAt(b, at), d > 0);
    } else {
      MultiplyShared<T>(st.s, OperandAt(a, at), OperandAt(b, at), d > 0);
    }
  }
  WarpgroupCommit();
}

// o += P V; issued, not waited for.
template <typename T, int kHeadDim>
__device__ __forceinline__ void IssueValues(HopperState<kHeadDim>& st, uint32_t v) {
  using Shape = HopperShape<kHeadDim>;
  const uint64_t b = SwizzledOperand<Shape::kRowBytes>(v, Shape::kGroupBytes, Shape::kAtomBytes);
#pragma unroll
  for (int t = 0; t < Shape::kCols / 16; ++t) {
    MultiplyRegisters<T>(st.o, st.p[t], OperandAt(b, t * 2 * Shape::kGroupBytes));
  }
  WarpgroupCommit();
}

// Turns scores into weights; returns what the output so far must be scaled by. last: of this thread's rows, the last
// position seen, from the tile's first on; looked at only if kMasked.
template <bool kMasked, bool kCapped, typename T, int kHeadDim>
__device__ __forceinline__ void Weigh(HopperState<kHeadDim>& st, const int32_t (&last)[2], const PrefillArgs<T>& a,
                                      float (&alpha)[2]) {
  constexpr int kTiles = HopperState<kHeadDim>::kCols / 8;
  const float scale_log2 = a.scale_log2;
  if constexpr (kCapped) {
#pragma unroll
    for (int i = 0; i < kTiles * 4; ++i) st.s[i] = TanhFast(st.s[i] * a.cap_inverse);
  }
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    if constexpr (kMasked) {
      const int32_t limit = last[j] - static_cast<int32_t>(threadIdx.x & 3) * 2;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        if (n * 8 > limit) st.s[4 * n + 2 * j] = -INFINITY;
        if (n * 8 + 1 > limit) st.s[4 * n + 2 * j + 1] = -INFINITY;
      }
      if (a.window != kNoWindow) {
        const int32_t unseen = limit - a.window;  // the last column before the window
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          if (n * 8 <= unseen) st.s[4 * n + 2 * j] = -INFINITY;
          if (n * 8 + 1 <= unseen) st.s[4 * n + 2 * j + 1] = -INFINITY;
        }
      }
    }
    float top = st.m[j];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) top = fmaxf(top, fmaxf(st.s[4 * n + 2 * j], st.s[4 * n + 2 * j + 1]));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    // A row that has seen nothing yet: all its weights are 2^-inf.
    const float shift = kMasked && top == -INFINITY ? 0.0f : top * scale_log2;
    alpha[j] = Exp2(fmaf(st.m[j], scale_log2, -shift));
    st.m[j] = top;
    float sum = 0.0f;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int e = 2 * j; e < 2 * j + 2; ++e) {
        st.s[4 * n + e] = Exp2(fmaf(st.s[4 * n + e], scale_log2, -shift));
        sum += st.s[4 * n + e];
      }
    }
    st.l[j] = st.l[j] * alpha[j] + sum;
  }
}

template <typename T, int kHeadDim>
__device__ __forceinline__ void PackWeights(HopperState<kHeadDim>& st) {
#pragma unroll
  for (int t = 0; t < HopperState<kHeadDim>::kCols / 16; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) st.p[t][i] = PackTwo<T>(st.s[8 * t + 2 * i], st.s[8 * t + 2 * i + 1]);
  }
}

template <int kHeadDim>
__device__ __forceinline__ void ScaleOutput(HopperState<kHeadDim>& st, const float (&alpha)[2]) {
#pragma unroll
  for (int i = 0; i < kHeadDim / 2; ++i) st.o[i] *= alpha[i / 2 & 1];
}

// Rows from `first` to the end of a tile of V become zeros: what the cache holds past the end of a sequence may be
// anything, and 0 * NaN is NaN. One warpgroup; both may do it to the same tile.
template <int kHeadDim>
__device__ __forceinline__ void ZeroRows(char* tile, int32_t first) {
  using Shape = HopperShape<kHeadDim>;
  constexpr int kChunks = kHeadDim / 8;
  for (int i = first * kChunks + (threadIdx.x & 127); i < Shape::kCols * kChunks; i += 128) {
    *reinterpret_cast<uint4*>(tile + Shape::Offset(i / kChunks, i % kChunks)) = make_uint4(0, 0, 0, 0);
  }
  FenceForMatrixUnits();
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace fastllm::cuda
