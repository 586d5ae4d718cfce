// linear for few rows (contract/linear.h): bound by reading the weight once, so that is all it is built for.
//
// A block has 16 rows of the weight (gated: 8 of gate and the 8 of up beside them) and its eight warps share k between
// them. The weight is the left operand of the tensor cores and goes from memory straight to registers: a thread takes
// 16 bytes of a row, which are its share of two m16n8k16 products when k is counted in an order of its own, and x is
// read in the same order. Up to 8 rows of x fill one product. The first weights are on their way before the kernel
// waits for the one before it (programmatic dependent launch), as no kernel writes weights. The fused products of few
// rows (contract/fused_linear.h) are these with another finish.
#pragma once

#include "cuda/common/launch_order.cuh"
#include "cuda/common/mma.cuh"
#include "cuda/common/types.cuh"
#include "cuda/gemm/skinny_finish.cuh"

namespace fastllm::cuda {

inline constexpr int kSkinnyChunk = 32;  // elements of k that a warp does at a time
inline constexpr int kLastBlocks = 264;  // of a kernel: two for each of a machine's multiprocessors

// Read once, by this thread alone: past L1, and first to leave L2.
__device__ __forceinline__ uint4 LoadWeight(const void* p, uint64_t policy) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4], %5;\n"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p), "l"(policy));
  return v;
}

// One chunk's operands of a thread: 16 bytes of two rows of the weight, and of a row of x for each product.
template <int kTiles>
struct SkinnyChunk {
  uint4 w[2];
  uint4 x[kTiles];
};

// A thread's share of the operands: rows and offsets within a chunk.
template <typename T, int kTiles>
struct SkinnyReader {
  const T* w[2];
  const T* x;
  int32_t m, k, group;
  uint64_t policy;

  __device__ __forceinline__ void Weight(SkinnyChunk<kTiles>& chunk, int32_t c) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) chunk.w[h] = LoadWeight(w[h] + int64_t{c} * kSkinnyChunk, policy);
  }
  __device__ __forceinline__ void Input(SkinnyChunk<kTiles>& chunk, int32_t c) const {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const int32_t row = i * 8 + group;
      chunk.x[i] = make_uint4(0, 0, 0, 0);
      if (row < m) {
        chunk.x[i] = *reinterpret_cast<const uint4*>(x + int64_t{row} * k + int64_t{c} * kSkinnyChunk);
      }
    }
  }
};

// acc += the products of chunks [begin, end). kAhead chunks are on their way at any time, the first ones before the
// kernel before this one is done.
// `meanwhile` runs while the first operands are on their way.
template <typename T, int kTiles, int kAhead, typename Meanwhile>
__device__ __forceinline__ void SkinnyProducts(const SkinnyReader<T, kTiles>& from, int32_t begin, int32_t end,
                                               float (&acc)[kTiles][4], const Meanwhile& meanwhile) {
  SkinnyChunk<kTiles> ahead[kAhead];
#pragma unroll
  for (int u = 0; u < kAhead; ++u) {
    if (begin + u < end) from.Weight(ahead[u], begin + u);
  }
  WaitForPrevious();
  AllowNext();
#pragma unroll
  for (int u = 0; u < kAhead; ++u) {
    if (begin + u < end) from.Input(ahead[u], begin + u);
  }
  meanwhile();
  for (int32_t c = begin; c < end; c += kAhead) {
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      if (c + u >= end) break;
      SkinnyChunk<kTiles>& now = ahead[u];
      const uint32_t low[4] = {now.w[0].x, now.w[1].x, now.w[0].y, now.w[1].y};
      const uint32_t high[4] = {now.w[0].z, now.w[1].z, now.w[0].w, now.w[1].w};
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        Mma16816<T>(acc[i], low, now.x[i].x, now.x[i].y);
        Mma16816<T>(acc[i], high, now.x[i].z, now.x[i].w);
      }
      if (c + u + kAhead >= end) continue;
      from.Weight(now, c + u + kAhead);
      from.Input(now, c + u + kAhead);
    }
  }
}

// kFused: one of the fused products, of up to 8 rows. kBlocks: blocks that a multiprocessor is to hold.
template <typename T, typename Out, int kTiles, SkinnyFinish kFinish, bool kFused, int kAhead, int kBlocks>
__global__ void __launch_bounds__(kSkinnyWarps * 32, kBlocks) SkinnyLinearKernel(const SkinnyArgs<T, Out> a) {
  extern __shared__ __align__(16) float squares[];  // [m, k / 16] where there are any
  __shared__ SkinnyParts<kTiles> parts;
  __shared__ float scales[8];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int g = lane / 4, t = lane % 4;
  const int32_t first = a.template FirstRow<kFinish>();
  // Rows past the end read the last one; their results are dropped.
  const int32_t last = kFinish == SkinnyFinish::kGated ? 2 * a.n - 1 : a.n - 1;
  const int64_t top = min(first + g, a.n - 1),
                bottom = min(static_cast<int32_t>(top) + a.template Second<kFinish>(), last);
  const SkinnyReader<T, kTiles> from{
      {a.weight + top * a.k + t * 8, a.weight + bottom * a.k + t * 8}, a.x + t * 8, a.m, a.k, g, EvictFirstPolicy()};
  const int32_t chunks = a.k / kSkinnyChunk;
  [[maybe_unused]] SkinnyEarly<T> early;
  float acc[kTiles][4] = {};
  SkinnyProducts<T, kTiles, kAhead>(from, chunks * warp / kSkinnyWarps, chunks * (warp + 1) / kSkinnyWarps, acc, [&] {
    if constexpr (kFused) {
      if (kFinish != SkinnyFinish::kAdd && a.squares != nullptr) FetchSquares(a, squares);
      early.template Read<kFinish>(a, first);
    }
  });
  if constexpr (kFused) {
    // Of a kernel with many blocks the last ones, which leave the machine together.
    const int32_t fetchers = min(gridDim.x, kLastBlocks), fetcher = blockIdx.x - (gridDim.x - fetchers);
    if (threadIdx.x == 0 && fetcher >= 0) a.next.Fetch(fetcher, fetchers);
  }
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int f = 0; f < 4; ++f) parts.v[warp][i * 4 + f][lane] = acc[i][f];
  }
  if constexpr (kFused) CopyAsyncWaitAll();
  __syncthreads();
  const bool normed = kFused && kFinish != SkinnyFinish::kAdd && a.squares != nullptr;
  if constexpr (kFused && kFinish != SkinnyFinish::kAdd) {
    if (normed) SkinnyScales(a, squares, scales);
  }
  if constexpr (kFinish == SkinnyFinish::kStore) {
    SkinnyStore(a, first, parts, normed ? scales : nullptr);
  } else if constexpr (kFinish == SkinnyFinish::kGated) {
    SkinnyGated(a, first, parts, normed ? scales : nullptr);
  } else if constexpr (kFinish == SkinnyFinish::kAdd) {
    SkinnyAdd(a, first, parts, early);
  } else {
    SkinnyRope(a, first, parts, normed ? scales : nullptr, early);
  }
}

}  // namespace fastllm::cuda
