// linear for few rows (contract/linear.h): bound by reading the weight once, so that is all it is built for.
//
// A block has 16 rows of the weight (gated: 8 of gate and the 8 of up beside them) and its eight warps share k between
// them. The weight is the left operand of the tensor cores and goes from memory straight to registers: a thread takes 16
// bytes of a row, which are its share of two m16n8k16 products when k is counted in an order of its own, and x is read
// in the same order. Up to 8 rows of x fill one product. The first weights are on their way before the kernel waits for
// the one before it (programmatic dependent launch), as no kernel writes weights.
#pragma once

#include "cuda/common/launch_order.cuh"
#include "cuda/common/mma.cuh"
#include "cuda/common/types.cuh"

namespace fastllm::cuda {

inline constexpr int kSkinnyWarps = 8;
inline constexpr int kSkinnyRowsOfWeight = 16;
inline constexpr int kSkinnyChunk = 32;  // elements of k that a warp does at a time
inline constexpr int kSkinnyAhead = 2;   // chunks that are loaded together

template <typename T, typename Out>
struct SkinnyArgs {
  Out* out;         // [m, n]
  const T* x;       // [m, k]
  const T* weight;  // [n, k]; gated: [2 n, k], gate first
  const T* bias;    // [n] or null; not gated
  int32_t m;
  int32_t n;
  int32_t k;  // a multiple of kSkinnyChunk
};

// Read once, by this thread alone: past L1, and first to leave L2.
__device__ __forceinline__ uint4 LoadWeight(const void* p, uint64_t policy) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4], %5;\n"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p), "l"(policy));
  return v;
}

// out = silu(gate) * up, rounded as the separate ops round: gate and up to T first.
template <typename T>
__device__ __forceinline__ float Gated(float gate, float up) {
  const float g = ToFloat(FromFloat<T>(gate));
  const float s = g / (1.0f + __expf(-g));
  return s * ToFloat(FromFloat<T>(up));
}

template <typename T, typename Out, int kTiles, bool kGated>
__global__ void __launch_bounds__(kSkinnyWarps * 32, kTiles == 1 ? 4 : kTiles == 2 ? 3 : 2)
    SkinnyLinearKernel(const SkinnyArgs<T, Out> a) {
  __shared__ float parts[kSkinnyWarps][4 * kTiles][32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int g = lane / 4, t = lane % 4;
  const int32_t first = blockIdx.x * (kGated ? 8 : 16);
  // Rows past the end read the last one; their results are dropped.
  const int64_t top = min(first + g, a.n - 1);
  const int64_t bottom = kGated ? a.n + top : min(first + g + 8, a.n - 1);
  const T* const w[2] = {a.weight + top * a.k + t * 8, a.weight + bottom * a.k + t * 8};
  const int32_t chunks = a.k / kSkinnyChunk;
  const int32_t begin = chunks * warp / kSkinnyWarps, end = chunks * (warp + 1) / kSkinnyWarps;

  const uint64_t policy = EvictFirstPolicy();
  uint4 next[kSkinnyAhead][2];
  const auto load = [&](int32_t c) {
#pragma unroll
    for (int u = 0; u < kSkinnyAhead; ++u) {
      if (c + u >= end) break;
#pragma unroll
      for (int h = 0; h < 2; ++h) next[u][h] = LoadWeight(w[h] + int64_t{c + u} * kSkinnyChunk, policy);
    }
  };
  load(begin);
  WaitForPrevious();
  AllowNext();

  float acc[kTiles][4] = {};
  for (int32_t c = begin; c < end; c += kSkinnyAhead) {
    uint4 now[kSkinnyAhead][2];
#pragma unroll
    for (int u = 0; u < kSkinnyAhead; ++u) {
      now[u][0] = next[u][0];
      now[u][1] = next[u][1];
    }
    load(c + kSkinnyAhead);
#pragma unroll
    for (int u = 0; u < kSkinnyAhead; ++u) {
      if (c + u >= end) break;
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        const int32_t row = i * 8 + g;
        uint4 b = {0, 0, 0, 0};
        if (row < a.m) {
          b = *reinterpret_cast<const uint4*>(a.x + int64_t{row} * a.k + int64_t{c + u} * kSkinnyChunk + t * 8);
        }
        const uint32_t low[4] = {now[u][0].x, now[u][1].x, now[u][0].y, now[u][1].y};
        const uint32_t high[4] = {now[u][0].z, now[u][1].z, now[u][0].w, now[u][1].w};
        Mma16816<T>(acc[i], low, b.x, b.y);
        Mma16816<T>(acc[i], high, b.z, b.w);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int f = 0; f < 4; ++f) parts[warp][i * 4 + f][lane] = acc[i][f];
  }
  __syncthreads();

  // The sum over the warps of element (row of the weight, row of x), in the order of the warps.
  const auto sum = [&](int row, int col) {
    const int f = (col / 8) * 4 + (row >= 8 ? 2 : 0) + col % 2;
    const int l = (row % 8) * 4 + col % 8 / 2;
    float s = 0.0f;
#pragma unroll
    for (int i = 0; i < kSkinnyWarps; ++i) s += parts[i][f][l];
    return s;
  };
  constexpr int kOutRows = kGated ? 8 : 16;
  for (int i = threadIdx.x; i < kOutRows * 8 * kTiles; i += kSkinnyWarps * 32) {
    const int row = i % kOutRows, col = i / kOutRows;
    const int32_t n = first + row;
    if (n >= a.n || col >= a.m) continue;
    float v;
    if constexpr (kGated) {
      v = Gated<T>(sum(row, col), sum(row + 8, col));
    } else {
      v = sum(row, col);
      if (a.bias != nullptr) v += ToFloat(a.bias[n]);
    }
    a.out[int64_t{col} * a.n + n] = FromFloat<Out>(v);
  }
}

}  // namespace fastllm::cuda
