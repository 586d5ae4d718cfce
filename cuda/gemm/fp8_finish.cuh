// What the kernel of fp8_linear (fp8_stream.cuh) has for arguments, and what it does with its sums.
#pragma once

#include <cuda.h>

#include "cuda/common/cluster.cuh"
#include "cuda/common/types.cuh"
#include "ops/contract/common.h"

namespace fastllm::cuda {

inline constexpr int kFp8Columns = 128;  // of the output, rows of the weight
inline constexpr int kFp8Depth = 128;    // of k in a stage
inline constexpr int kFp8Consumers = 256;
inline constexpr int kFp8Threads = kFp8Consumers + 32;
inline constexpr int kFp8SumStride = kFp8Columns + 4;  // floats of a token's row of sums; +4 spreads the banks

struct Fp8StreamArgs {
  CUtensorMap weight;  // [n, k], in boxes of 128 x 128
  CUtensorMap x;       // [m, k], in boxes of kTokens x 128
  void* out;           // [m, n]
  const float* x_scale;
  const float* weight_scale;
  const void* bias;  // [n] of the type of out, or null
  int32_t m;
  int32_t n;  // a multiple of 16, as k is
  int32_t k;
  bool early;       // the next kernel may start before the one before this is done
  int32_t ahead;    // stages beyond the ring that the L2 is asked for before the kernel before is done
  ops::DType type;  // of out
};

// A block's part of the product.
struct Fp8Part {
  int32_t row0;    // of the weight
  int32_t token0;  // tokens [token0, token0 + tokens)
  int32_t tokens;
  int32_t split;  // of `splits` parts of k
  int32_t splits;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// The accumulators of this thread to [token][column] at `sums`.
template <int kTokens>
__device__ __forceinline__ void LeaveFp8Sums(uint32_t sums, const float (&acc)[kTokens / 2]) {
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
  for (int i = 0; i < kTokens / 2; ++i) {
    const int token = i / 4 * 8 + lane % 4 * 2 + i % 2, column = row + i % 4 / 2 * 8;
    asm volatile("st.shared.f32 [%0], %1;\n" ::"r"(sums + (token * kFp8SumStride + column) * 4), "f"(acc[i])
                 : "memory");
  }
}

template <typename T>
__device__ __forceinline__ float4 LoadFour(const void* from, int64_t at) {
  const T* p = static_cast<const T*>(from) + at;
  return make_float4(ToFloat(p[0]), ToFloat(p[1]), ToFloat(p[2]), ToFloat(p[3]));
}
template <typename T>
__device__ __forceinline__ void StoreFourAs(void* out, int64_t at, float4 v) {
  if constexpr (sizeof(T) == 4) {
    *reinterpret_cast<float4*>(static_cast<T*>(out) + at) = v;
  } else {
    *reinterpret_cast<uint2*>(static_cast<T*>(out) + at) = make_uint2(PackTwo<T>(v.x, v.y), PackTwo<T>(v.z, v.w));
  }
}

// What a thread's four columns are multiplied by and what is added to them. Constants of the model, and read from
// memory while the kernel waits for other things.
struct Fp8Outputs {
  int32_t first;
  float4 scale;
  float4 bias;

  __device__ __forceinline__ Fp8Outputs(const Fp8StreamArgs& a, const Fp8Part& part)
      : first(part.row0 + static_cast<int32_t>(threadIdx.x) % 32 * 4), scale{}, bias{} {
    if (first >= a.n) return;
    scale = *reinterpret_cast<const float4*>(a.weight_scale + first);
    if (a.bias == nullptr) return;
    switch (a.type) {
      case ops::DType::kF16: bias = LoadFour<__half>(a.bias, first); break;
      case ops::DType::kBF16: bias = LoadFour<bf16>(a.bias, first); break;
      default: bias = LoadFour<float>(a.bias, first); break;
    }
  }
};

// The first of this warp's tokens within the block's share of the tile's, and where the share ends.
__device__ __forceinline__ int32_t FirstFp8Token(const Fp8Part& part) {
  return part.tokens * part.split / part.splits + static_cast<int32_t>(threadIdx.x) / 32;
}
__device__ __forceinline__ int32_t EndFp8Tokens(const Fp8Part& part) {
  return part.tokens * (part.split + 1) / part.splits;
}

// This block's share of the tile's tokens: sums of all parts of k in their order, scales, bias. `scale`: of the first
// of this warp's tokens.
template <typename T>
__device__ __forceinline__ void FinishFp8(const Fp8StreamArgs& a, uint32_t sums, const Fp8Part& part,
                                          const Fp8Outputs& columns, float scale) {
  if (columns.first >= a.n) return;
  const float4 w = columns.scale, b = columns.bias;
  const int32_t begin = FirstFp8Token(part), end = EndFp8Tokens(part);
  for (int32_t t = begin; t < end; t += kFp8Consumers / 32) {
    if (t > begin) scale = a.x_scale[part.token0 + t];
    const uint32_t at = sums + (t * kFp8SumStride + columns.first - part.row0) * 4;
    float4 s = LoadCluster4(SharedOf(at, 0));
    for (int32_t r = 1; r < part.splits; ++r) {
      const float4 v = LoadCluster4(SharedOf(at, r));
      s.x += v.x, s.y += v.y, s.z += v.z, s.w += v.w;
    }
    StoreFourAs<T>(a.out, static_cast<int64_t>(part.token0 + t) * a.n + columns.first,
                   make_float4(s.x * scale * w.x + b.x, s.y * scale * w.y + b.y, s.z * scale * w.z + b.z,
                               s.w * scale * w.w + b.w));
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace fastllm::cuda
