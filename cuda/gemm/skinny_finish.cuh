// What a block of the products of few rows (skinny.cuh) does with its sums.
#pragma once

#include "cuda/common/mma.cuh"
#include "cuda/common/reduce.cuh"
#include "cuda/common/types.cuh"
#include "cuda/gemm/fused.cuh"

namespace fastllm::cuda {

inline constexpr int kSkinnyWarps = 8;
inline constexpr int kSkinnyRowsOfWeight = 16;

enum class SkinnyFinish { kStore, kGated, kAdd, kRope };

template <typename T, typename Out>
struct SkinnyArgs {
  Out* out = nullptr;         // [m, out_stride]; kAdd: the residual; kRope: q
  const T* x = nullptr;       // [m, k]
  const T* weight = nullptr;  // [n, k]; gated: [2 n, k], gate first
  const T* bias = nullptr;    // by rows of the weight, or null; not gated
  int64_t out_stride = 0;
  int32_t m = 0;
  int32_t n = 0;
  int32_t k = 0;  // a multiple of kSkinnyChunk
  // Of the fused products.
  float eps = 0.0f;
  const float* squares = nullptr;  // of the rows of x, [m, k / 16]; null: x is normalised
  FusedAdd<T> add;
  FusedRope<T> rope;
  FusedNext next;

  // Rows of the weight: a block has 8 from FirstRow() on and 8 from Second() further on. Pairs of a head: eight
  // neighbouring ones.
  template <SkinnyFinish kFinish>
  __device__ __forceinline__ int32_t FirstRow() const {
    const int32_t block = blockIdx.x;
    if constexpr (kFinish == SkinnyFinish::kGated) return block * 8;
    if constexpr (kFinish != SkinnyFinish::kRope) return block * kSkinnyRowsOfWeight;
    const int32_t per_head = rope.head_dim / kSkinnyRowsOfWeight, head = block / per_head;
    return head * rope.head_dim + (block - head * per_head) * 8;
  }
  template <SkinnyFinish kFinish>
  __device__ __forceinline__ int32_t Second() const {
    if constexpr (kFinish == SkinnyFinish::kGated) return n;
    if constexpr (kFinish == SkinnyFinish::kRope) return rope.head_dim / 2;
    return 8;
  }
};

// The sums of the warps of a block, [warp][fragment element][lane].
template <int kTiles>
struct SkinnyParts {
  float v[kSkinnyWarps][4 * kTiles][32];

  // Of (row of the weight, row of x), added up in the order of the warps.
  __device__ __forceinline__ float Sum(int row, int col) const {
    const int f = (col / 8) * 4 + (row >= 8 ? 2 : 0) + col % 2;
    const int l = (row % 8) * 4 + col % 8 / 2;
    float s = 0.0f;
#pragma unroll
    for (int i = 0; i < kSkinnyWarps; ++i) s += v[i][f][l];
    return s;
  }
};

// The element, or the first of a pair, of a thread.
template <SkinnyFinish kFinish, int kTiles>
struct SkinnyPlace {
  static constexpr int kRows = kFinish == SkinnyFinish::kGated || kFinish == SkinnyFinish::kRope ? 8 : 16;
  static constexpr int kCount = kRows * 8 * kTiles;
  int row, col;

  __device__ explicit SkinnyPlace(int i) : row(i % kRows), col(i / kRows) {}
  template <typename T, typename Out>
  __device__ __forceinline__ bool Real(const SkinnyArgs<T, Out>& a, int32_t first) const {
    return first + row < a.n && col < a.m;
  }
};

// What a thread needs for its finish, read while the products run.
template <typename T>
struct SkinnyEarly {
  T residual, gain;
  int32_t position;
  int64_t slot;

  template <SkinnyFinish kFinish>
  __device__ __forceinline__ void Read(const SkinnyArgs<T, T>& a, int32_t first) {
    const SkinnyPlace<kFinish, 1> at(threadIdx.x);
    if (!at.Real(a, first)) return;
    if constexpr (kFinish == SkinnyFinish::kAdd) {
      residual = a.out[at.col * a.out_stride + first + at.row];
      if (a.add.gain != nullptr) gain = a.add.gain[first + at.row];
    } else if constexpr (kFinish == SkinnyFinish::kRope) {
      position = a.rope.positions[at.col];
      slot = a.rope.slots[at.col];
    }
  }
};

// The sums of squares on their way to shared memory, where SkinnyScales finds them when the products are done.
template <typename T>
__device__ __forceinline__ void FetchSquares(const SkinnyArgs<T, T>& a, float* squares) {
  const int32_t count = a.m * (a.k / kSkinnyRowsOfWeight);
  for (int32_t i = threadIdx.x * 4; i < count; i += kSkinnyWarps * 32 * 4) {
    CopyAsyncBytes(SharedAddress(squares + i), a.squares + i, min(count - i, 4) * 4);
  }
}

// scales[t]: 1 / root mean square of row t of x before the gain. All threads; a barrier before, and one at the end.
template <typename T>
__device__ __forceinline__ void SkinnyScales(const SkinnyArgs<T, T>& a, const float* squares, float* scales) {
  const int32_t parts = a.k / kSkinnyRowsOfWeight, lane = threadIdx.x % 32;
  for (int32_t t = threadIdx.x / 32; t < a.m; t += kSkinnyWarps) {
    float sum = 0.0f;
    for (int32_t i = lane; i < parts; i += 32) sum += squares[t * parts + i];
    sum = WarpSum(sum);
    if (lane == 0) scales[t] = rsqrtf(sum / static_cast<float>(a.k) + a.eps);
  }
  __syncthreads();
}

// scales: null where x needs none.
template <typename T, typename Out, int kTiles>
__device__ __forceinline__ void SkinnyStore(const SkinnyArgs<T, Out>& a, int32_t first,
                                            const SkinnyParts<kTiles>& parts, const float* scales) {
  using Place = SkinnyPlace<SkinnyFinish::kStore, kTiles>;
  for (int i = threadIdx.x; i < Place::kCount; i += kSkinnyWarps * 32) {
    const Place at(i);
    if (!at.Real(a, first)) continue;
    float v = parts.Sum(at.row, at.col);
    if (scales != nullptr) v *= scales[at.col];
    if (a.bias != nullptr) v += ToFloat(a.bias[first + at.row]);
    a.out[at.col * a.out_stride + first + at.row] = FromFloat<Out>(v);
  }
}

template <typename T, int kTiles>
__device__ __forceinline__ void SkinnyGated(const SkinnyArgs<T, T>& a, int32_t first, const SkinnyParts<kTiles>& parts,
                                            const float* scales) {
  using Place = SkinnyPlace<SkinnyFinish::kGated, kTiles>;
  for (int i = threadIdx.x; i < Place::kCount; i += kSkinnyWarps * 32) {
    const Place at(i);
    if (!at.Real(a, first)) continue;
    const float scale = scales != nullptr ? scales[at.col] : 1.0f;
    const float gate = parts.Sum(at.row, at.col) * scale, up = parts.Sum(at.row + 8, at.col) * scale;
    a.out[at.col * a.out_stride + first + at.row] = FromFloat<T>(gate / (1.0f + __expf(-gate)) * up);
  }
}

// Added to the residual; the 16 lanes of a row of x add up its squares.
template <typename T>
__device__ __forceinline__ void SkinnyAdd(const SkinnyArgs<T, T>& a, int32_t first, const SkinnyParts<1>& parts,
                                          const SkinnyEarly<T>& early) {
  using Place = SkinnyPlace<SkinnyFinish::kAdd, 1>;
  if (threadIdx.x >= Place::kCount) return;
  const Place at(threadIdx.x);
  const int32_t n = first + at.row;
  const bool real = at.Real(a, first);
  float v = 0.0f;
  if (real) {
    v = parts.Sum(at.row, at.col) + (a.bias != nullptr ? ToFloat(a.bias[n]) : 0.0f);
    const T rounded = FromFloat<T>(v + ToFloat(early.residual));
    a.out[at.col * a.out_stride + n] = rounded;
    v = ToFloat(rounded);  // the norm is that of the row as stored
    if (a.add.gain != nullptr) a.add.scaled[int64_t{at.col} * a.n + n] = FromFloat<T>(v * ToFloat(early.gain));
  }
  if (a.add.gain == nullptr) return;
  const float square = WarpSum<16>(v * v);
  if (at.row == 0 && real) a.add.squares[at.col * ((a.n + 15) / 16) + first / 16] = square;
}

// The two elements of a head that rotate together.
template <typename T>
__device__ __forceinline__ void SkinnyRope(const SkinnyArgs<T, T>& a, int32_t first, const SkinnyParts<1>& parts,
                                           const float* scales, const SkinnyEarly<T>& early) {
  using Place = SkinnyPlace<SkinnyFinish::kRope, 1>;
  const Place at(threadIdx.x);
  if (threadIdx.x >= Place::kCount || !at.Real(a, first)) return;
  const int32_t n = first + at.row;
  const float scale = scales != nullptr ? scales[at.col] : 1.0f;
  float x = parts.Sum(at.row, at.col) * scale, y = parts.Sum(at.row + 8, at.col) * scale;
  if (a.bias != nullptr) x += ToFloat(a.bias[n]), y += ToFloat(a.bias[n + a.rope.head_dim / 2]);
  a.rope.Rotate(early.position, n, x, y);
  T* const to = a.rope.Place(at.col, early.slot, n, a.out, a.out_stride);
  if (to == nullptr) return;
  to[0] = FromFloat<T>(x);
  to[a.rope.head_dim / 2] = FromFloat<T>(y);
}

}  // namespace fastllm::cuda
