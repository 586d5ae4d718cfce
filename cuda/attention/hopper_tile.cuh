// The pieces of the Hopper prefill kernel (prefill_hopper.cuh): copies, products, softmax of one tile.
#pragma once

#include "cuda/attention/prefill_place.cuh"
#include "cuda/common/wgmma.cuh"

namespace fastllm::cuda {

template <int kHeadDim>
struct HopperShape {
  static constexpr int kThreads = 256;
  static constexpr int kCols = 128;              // positions of one tile
  static constexpr int kHalves = kHeadDim / 64;  // column blocks of 128 bytes
  static constexpr int kQBytes = kPrefillRows * kHeadDim * 2;
  static constexpr int kTileBytes = kCols * kHeadDim * 2;
  static constexpr int kSharedBytes = kQBytes + 4 * kTileBytes + 1024;  // two of K, two of V; room to align
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Where 16-byte chunk c of row r lies: column blocks of 128 rows, swizzled as the matrix units want them.
__device__ __forceinline__ uint32_t BlockOffset(int r, int c) {
  return (c / 8) * (128 * 128) + r * 128 + ((c % 8 ^ (r & 7)) << 4);
}

template <typename T, int kHeadDim>
__device__ __forceinline__ void LoadQueryBlocks(const PrefillArgs<T>& a, const PrefillPlace& place, uint32_t shared) {
  constexpr int kChunks = kHeadDim / 8;
#pragma unroll
  for (int i = 0; i < kPrefillRows * kChunks / HopperShape<kHeadDim>::kThreads; ++i) {
    const int chunk = i * HopperShape<kHeadDim>::kThreads + threadIdx.x;
    const int r = chunk / kChunks;
    const int32_t row = place.tile.first_row + r;
    const bool valid = row < place.rows;
    const int32_t token = valid ? row / a.group : 0;
    const int32_t head = place.kv_head * a.group + (valid ? row - token * a.group : 0);
    const T* q =
        a.q + (place.token0 + token) * a.q_stride + static_cast<int64_t>(head) * kHeadDim + chunk % kChunks * 8;
    CopyAsync16(shared + BlockOffset(r, chunk % kChunks), q, valid);
  }
}

// Tile `index` of `cache` (K or V); zeros past the end of the sequence.
template <typename T, int kHeadDim>
__device__ __forceinline__ void LoadBlocks(const PrefillArgs<T>& a, const PrefillPlace& place, const T* cache,
                                           const int32_t* table, int32_t index, uint32_t shared) {
  constexpr int kChunks = kHeadDim / 8;
#pragma unroll
  for (int i = 0; i < HopperShape<kHeadDim>::kCols * kChunks / HopperShape<kHeadDim>::kThreads; ++i) {
    const int chunk = i * HopperShape<kHeadDim>::kThreads + threadIdx.x;
    const int r = chunk / kChunks;
    const int32_t position = index * HopperShape<kHeadDim>::kCols + r;
    const bool valid = position < place.tile.length;
    const int64_t page = valid ? __ldg(table + (position >> a.block_shift)) : 0;
    const int32_t row = position & ((1 << a.block_shift) - 1);
    const T* from = cache + ((((page * a.kv_heads + place.kv_head) << a.block_shift) + row)) * kHeadDim;
    CopyAsync16(shared + BlockOffset(r, chunk % kChunks), from + chunk % kChunks * 8, valid);
  }
}

template <int kHeadDim>
struct HopperState {
  float o[kHeadDim / 2];
  float s[64];
  uint32_t p[8][4];
  float m[2];
  float l[2];
};

// s = Q K^T of this warpgroup's rows; issued, not waited for.
template <typename T, int kHeadDim>
__device__ __forceinline__ void IssueScores(HopperState<kHeadDim>& st, uint32_t q, uint32_t k) {
#pragma unroll
  for (int d = 0; d < kHeadDim / 16; ++d) {
    const uint32_t at = d / 4 * (128 * 128) + d % 4 * 32;
    MultiplyShared128<T>(st.s, SwizzledOperand(q + at, 1024, 16), SwizzledOperand(k + at, 1024, 16), d > 0);
  }
  WarpgroupCommit();
}

// o += P V; issued, not waited for.
template <typename T, int kHeadDim>
__device__ __forceinline__ void IssueValues(HopperState<kHeadDim>& st, uint32_t v) {
#pragma unroll
  for (int t = 0; t < 8; ++t) {
    const uint64_t b = SwizzledOperand(v + t * 16 * 128, 1024, 128 * 128);
    if constexpr (kHeadDim == 128) {
      MultiplyRegisters128<T>(st.o, st.p[t], b);
    } else {
      MultiplyRegisters64<T>(st.o, st.p[t], b);
    }
  }
  WarpgroupCommit();
}

// Masks, if need be, and turns scores into weights; returns what the output so far must be scaled by.
template <int kHeadDim>
__device__ __forceinline__ void Weigh(HopperState<kHeadDim>& st, const PrefillPlace& place, int32_t group,
                                      int32_t first, float scale_log2, float (&alpha)[2]) {
  const int lane = threadIdx.x & 31;
  const int32_t row = place.tile.first_row + (threadIdx.x >> 5) * 16 + lane / 4;
  const bool masked = first + 127 > place.PositionOf(place.tile.first_row + (threadIdx.x >> 5) * 16, group);
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    if (masked) {
      const int32_t last = place.PositionOf(row + 8 * j, group) - first - lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < 16; ++n) {
        if (n * 8 > last) st.s[4 * n + 2 * j] = -INFINITY;
        if (n * 8 + 1 > last) st.s[4 * n + 2 * j + 1] = -INFINITY;
      }
    }
    float top = st.m[j];
#pragma unroll
    for (int n = 0; n < 16; ++n) top = fmaxf(top, fmaxf(st.s[4 * n + 2 * j], st.s[4 * n + 2 * j + 1]));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    alpha[j] = Exp2((st.m[j] - top) * scale_log2);
    st.m[j] = top;
    const float shift = top * scale_log2;
    float sum = 0.0f;
#pragma unroll
    for (int n = 0; n < 16; ++n) {
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
  for (int t = 0; t < 8; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) st.p[t][i] = PackTwo<T>(st.s[8 * t + 2 * i], st.s[8 * t + 2 * i + 1]);
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace fastllm::cuda
