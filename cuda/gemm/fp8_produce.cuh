// The ring of stages of the kernel of fp8_linear (fp8_stream.cuh) and what fills it.
#pragma once

#include "cuda/common/launch_order.cuh"
#include "cuda/common/mma.cuh"
#include "cuda/common/tma.cuh"
#include "cuda/common/tma_fetch.cuh"
#include "cuda/gemm/fp8_finish.cuh"

namespace fastllm::cuda {

// kBlocksOf: blocks that a multiprocessor holds, which share its memory among their rings.
template <int kTokensOf, int kBlocksOf>
struct Fp8StreamShape {
  static constexpr int kTokens = kTokensOf;
  static constexpr int kBlocks = kBlocksOf;
  static constexpr int kWeightBytes = kFp8Columns * kFp8Depth;
  static constexpr int kStageBytes = kWeightBytes + kTokens * kFp8Depth;
  static constexpr int kRoom = (228 * 1024 / kBlocks - 1024) - 1024 - 512;  // of which the alignment and barriers
  static constexpr int kMost = kBlocks == 1 ? 12 : 8;
  static constexpr int kStages = kRoom / kStageBytes < kMost ? kRoom / kStageBytes : kMost;
  static constexpr int kSharedBytes = kStages * kStageBytes + 1024;
  static_assert(kTokens * kFp8SumStride * 4 <= kStages * kStageBytes);
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// The ring of stages, as shared-memory addresses, and the block's steps of k.
struct Fp8Ring {
  uint32_t base;
  uint32_t full;   // barriers of the stages
  uint32_t empty;  // likewise
  int32_t begin;
  int32_t end;
};

// The producer's copies; one thread.
template <typename Shape>
struct Fp8Producer {
  const Fp8StreamArgs& a;
  const Fp8Ring& ring;
  const Fp8Part& part;
  uint64_t once = EvictFirstPolicy(), keep = EvictLastPolicy();

  __device__ __forceinline__ int32_t Ahead() const { return min(ring.end - ring.begin, Shape::kStages); }
  __device__ __forceinline__ void Weight(int32_t i, uint32_t s) const {
    ArriveExpecting(ring.full + s * 8, Shape::kStageBytes);
    CopyBox2(ring.base + s * Shape::kStageBytes, &a.weight, ring.full + s * 8, (ring.begin + i) * (kFp8Depth / 2),
             part.row0, once);
  }
  __device__ __forceinline__ void Input(int32_t i, uint32_t s) const {
    CopyBox2(ring.base + s * Shape::kStageBytes + Shape::kWeightBytes, &a.x, ring.full + s * 8,
             (ring.begin + i) * (kFp8Depth / 2), part.token0, keep);
  }
  __device__ __forceinline__ void Begin() const {
    PrefetchMap(&a.x);
    for (int32_t i = 0; i < Ahead(); ++i) Weight(i, i);
    for (int32_t i = Ahead(); i < min(ring.end - ring.begin, Ahead() + a.ahead); ++i) {
      FetchBox2(&a.weight, (ring.begin + i) * (kFp8Depth / 2), part.row0);
    }
  }
  __device__ __forceinline__ void Finish() const {
    WaitForPrevious();
    for (int32_t i = 0; i < Ahead(); ++i) Input(i, i);
    for (int32_t i = Ahead(); i < ring.end - ring.begin; ++i) {
      const uint32_t s = i % Shape::kStages;
      WaitFor(ring.empty + s * 8, (i / Shape::kStages - 1) & 1);
      Weight(i, s);
      Input(i, s);
    }
  }
};

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace fastllm::cuda
