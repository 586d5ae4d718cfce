// The matrix operands of a tile of K or V in the decode kernel, from a cache of T or of fp8.
//
// With 8 bits the order of dimensions within each 16 is one of its own, as an ldmatrix of pairs of bytes gives it:
// thread t of a row's four has elements 4 t to 4 t + 3 of K (and takes those of q), and the rows of V^T are the even
// dimensions, then the odd ones.
#pragma once

#include "cuda/attention/decode_stream.cuh"

namespace fastllm::cuda {

// Where this thread's pairs of q are, in each 16 elements: kFirst + {0, 1} and kSecond further.
template <typename KV>
struct KeyOrder {
  static constexpr bool kBytes = sizeof(KV) == 1;
  static __device__ __forceinline__ int First(int lane) { return lane % 4 * (kBytes ? 4 : 2); }
  static constexpr int kSecond = kBytes ? 2 : 8;
};

// The dimension, in each 16, of this thread's first row of V^T, and what the second is further.
template <typename KV>
struct ValueOrder {
  static constexpr bool kBytes = sizeof(KV) == 1;
  static __device__ __forceinline__ int First(int lane) { return lane / 4 * (kBytes ? 2 : 1); }
  static constexpr int kSecond = kBytes ? 1 : 8;
};

// Dimensions 16 d to 16 d + 15 of a tile of K, as the left operand of 16 positions.
template <typename T, typename KV, int kHeadDim>
__device__ __forceinline__ void LoadKeyFragment(uint32_t (&a)[4], uint32_t tile, int d) {
  const int lane = threadIdx.x & 31;
  if constexpr (sizeof(KV) == 1) {
    uint32_t r[2];
    LoadMatrix2(r, tile + TileOffset<kHeadDim, 1>(lane % 16, d));
    a[0] = UnpackTwoFp8<T>(r[0] & 0xffff);
    a[1] = UnpackTwoFp8<T>(r[1] & 0xffff);
    a[2] = UnpackTwoFp8<T>(r[0] >> 16);
    a[3] = UnpackTwoFp8<T>(r[1] >> 16);
  } else {
    LoadMatrix4(a, tile + TileOffset<kHeadDim>(lane % 16, 2 * d + lane / 16));
  }
}

// The same of V^T: rows are dimensions.
template <typename T, typename KV, int kHeadDim>
__device__ __forceinline__ void LoadValueFragment(uint32_t (&a)[4], uint32_t tile, int d) {
  const int lane = threadIdx.x & 31;
  if constexpr (sizeof(KV) == 1) {
    uint32_t r[2];
    LoadMatrix2Transposed(r, tile + TileOffset<kHeadDim, 1>(lane % 16, d));
    a[0] = UnpackTwoFp8<T>(__byte_perm(r[0], 0, 0x4420));
    a[1] = UnpackTwoFp8<T>(__byte_perm(r[0], 0, 0x4431));
    a[2] = UnpackTwoFp8<T>(__byte_perm(r[1], 0, 0x4420));
    a[3] = UnpackTwoFp8<T>(__byte_perm(r[1], 0, 0x4431));
  } else {
    LoadMatrix4Transposed(a, tile + TileOffset<kHeadDim>(lane % 8 + lane / 16 * 8, 2 * d + (lane / 8 & 1)));
  }
}

}  // namespace fastllm::cuda
