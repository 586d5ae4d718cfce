// What the kernel of dense_linear for few rows (few_stream.cuh) is made for and given, and what it does with
// its sums.
#pragma once

#include <cuda.h>

#include "cuda/common/cluster.cuh"
#include "cuda/common/launch_order.cuh"
#include "cuda/common/mma.cuh"
#include "cuda/common/tma.cuh"
#include "cuda/common/types.cuh"

namespace fastllm::cuda {

inline constexpr int kFewDepth = 64;  // elements of k in a stage

// An instance: rows of the weight to a block (64, 128 or 256), rows of x at most. A block has a multiprocessor's shared
// memory to itself.
template <int kRowsOf, int kTokensOf>
struct FewShape {
  static constexpr int kRows = kRowsOf;
  static constexpr int kTokens = kTokensOf;

  static constexpr int kAtoms = kRows > 128 ? 2 : 1;  // of 64 rows, for each warpgroup
  static constexpr int kGroups = kRows / 64 / kAtoms;
  static constexpr int kConsumers = kGroups * 128;
  static constexpr int kThreads = kConsumers + 32;
  static constexpr int kBound = kAtoms * kTokens > 64 ? 2 : 3;  // blocks that its registers would leave room for
  static constexpr int kWeightBytes = kRows * kFewDepth * 2;
  static constexpr int kStageBytes = kWeightBytes + kTokens * kFewDepth * 2;
  static constexpr int kRoom = 226 * 1024 - 256;  // less the alignment and barriers
  static constexpr int kStages = kRoom / kStageBytes < 12 ? kRoom / kStageBytes : 12;
  static constexpr int kSharedBytes = kStages * kStageBytes + 1024;
  static constexpr int kSumStride = kRows + 4;  // floats of a token's row of sums; +4 spreads the banks
  static_assert(kTokens * kSumStride * 4 <= kStages * kStageBytes && kSharedBytes + 256 <= 227 * 1024);
};

struct FewArgs {
  CUtensorMap weight;  // boxes of kRows rows
  CUtensorMap x;       // [m, k], boxes of kTokens rows
  bf16* out;           // [m, n]
  const bf16* bias;    // [n] or null
  int32_t m;           // up to kTokens
  int32_t n;           // a multiple of 16
  int32_t k;           // a multiple of 8
  int32_t ahead;       // stages beyond the ring that the L2 is asked for before the kernel before is done
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// The accumulators of this thread to [token][row of the weight] at `sums`.
template <typename Shape>
__device__ __forceinline__ void LeaveFewSums(uint32_t sums, const float (&acc)[Shape::kAtoms][Shape::kTokens / 2]) {
  const int lane = threadIdx.x % 32;
  const int row = threadIdx.x / 128 * (Shape::kRows / Shape::kGroups) + threadIdx.x / 32 % 4 * 16 + lane / 4;
#pragma unroll
  for (int i = 0; i < Shape::kAtoms * Shape::kTokens / 2; ++i) {
    const int atom = i / (Shape::kTokens / 2), j = i % (Shape::kTokens / 2);
    const int token = j / 4 * 8 + lane % 4 * 2 + j % 2, column = row + atom * 64 + j % 4 / 2 * 8;
    asm volatile("st.shared.f32 [%0], %1;\n" ::"r"(sums + (token * Shape::kSumStride + column) * 4), "f"(acc[atom][j])
                 : "memory");
  }
}

// The sums of all blocks of the cluster, in the blocks' order, for four neighbouring rows of the weight and kAtOnce
// tokens `stride` bytes apart, of which there are `tokens`. All are asked for before the first is used.
template <int kAtOnce>
__device__ __forceinline__ void ClusterSums(float4 (&s)[kAtOnce], uint32_t at, uint32_t stride, int32_t tokens,
                                            int32_t splits) {
  constexpr int kBlocks = 3;
  const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i) s[i] = zero;
  for (int32_t first = 0; first < splits; first += kBlocks) {
    float4 v[kBlocks][kAtOnce];
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const uint32_t from = SharedOf(at, min(first + b, splits - 1));
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        v[b][i] = first + b < splits && i < tokens ? LoadCluster4(from + i * stride) : zero;
      }
    }
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        s[i].x += v[b][i].x, s[i].y += v[b][i].y, s[i].z += v[b][i].z, s[i].w += v[b][i].w;
      }
    }
  }
}

// This block's share of the tokens.
template <typename Shape>
__device__ __forceinline__ void FinishFew(const FewArgs& a, uint32_t sums) {
  constexpr int kFours = Shape::kRows / 4, kStep = Shape::kConsumers / kFours, kAtOnce = 3;
  const int32_t column = static_cast<int32_t>(threadIdx.x) % kFours * 4;
  const int32_t out_column = static_cast<int32_t>(blockIdx.y) * Shape::kRows + column;
  if (out_column >= a.n) return;
  const int32_t splits = gridDim.x, split = blockIdx.x, end = a.m * (split + 1) / splits;
  float4 bias = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (a.bias != nullptr) {
    const bf16* b = a.bias + out_column;
    bias = make_float4(ToFloat(b[0]), ToFloat(b[1]), ToFloat(b[2]), ToFloat(b[3]));
  }
  for (int32_t t = a.m * split / splits + static_cast<int32_t>(threadIdx.x) / kFours; t < end; t += kAtOnce * kStep) {
    float4 s[kAtOnce];
    const int32_t tokens = (end - t + kStep - 1) / kStep;
    ClusterSums(s, sums + (t * Shape::kSumStride + column) * 4, kStep * Shape::kSumStride * 4, tokens, splits);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (i >= tokens) break;
      *reinterpret_cast<uint2*>(a.out + int64_t{t + i * kStep} * a.n + out_column) =
          make_uint2(PackTwo<bf16>(s[i].x + bias.x, s[i].y + bias.y), PackTwo<bf16>(s[i].z + bias.z, s[i].w + bias.w));
    }
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace fastllm::cuda
