// silu_mul_fp8 (contract/fp8.h) for many rows: a block stays and takes every gridDim.x-th row. A row's silu takes half
// as long as its way from memory, so the next two rows are on their way meanwhile: each thread fetches what it will
// compute itself to places of its own in shared memory, and nobody waits for another but for the row's largest
// magnitude.
#pragma once

#include "cuda/common/mma.cuh"
#include "cuda/quant/fp8_rows.cuh"

namespace fastllm::cuda {

inline constexpr int kFp8PipedStages = 3;
inline constexpr int kFp8PipedPacks = 2;  // of gate and of up, of a thread
inline constexpr int kFp8PipedThreads = 1024;

constexpr int32_t Fp8PipedBytes(int32_t threads) { return kFp8PipedStages * 2 * kFp8PipedPacks * threads * 16; }

// packs: of a row of the result, at most kFp8PipedPacks for each thread.
template <typename T>
__global__ void __launch_bounds__(kFp8PipedThreads)
    Fp8SiluPipedKernel(const T* gate_up, const ops::Fp8Rows out, int32_t rows, int32_t packs) {
  constexpr int kSize = Pack<T>::kSize;
  extern __shared__ uint4 places[];  // [stage][pack, gate and up][thread]
  __shared__ float largest[2][32];
  const int32_t threads = blockDim.x, step = gridDim.x;
  const auto place = [&](int32_t stage, int32_t j, int32_t half) {
    return places + ((stage * kFp8PipedPacks + j) * 2 + half) * threads + threadIdx.x;
  };
  const auto fetch = [&](int32_t row, int32_t stage) {
    const T* gate = gate_up + int64_t{row} * 2 * packs * kSize;
#pragma unroll
    for (int j = 0; j < kFp8PipedPacks; ++j) {
      const int32_t i = j * threads + threadIdx.x;
      if (row >= rows || i >= packs) break;
      CopyAsync16(SharedAddress(place(stage, j, 0)), gate + i * kSize, true);
      CopyAsync16(SharedAddress(place(stage, j, 1)), gate + (packs + i) * kSize, true);
    }
    CopyAsyncCommit();
  };
  AllowNext();
  WaitForPrevious();
  int32_t row = blockIdx.x;
#pragma unroll
  for (int s = 0; s < kFp8PipedStages - 1; ++s) fetch(row + s * step, s);
  for (int32_t n = 0; row < rows; ++n, row += step) {
    fetch(row + (kFp8PipedStages - 1) * step, (n + kFp8PipedStages - 1) % kFp8PipedStages);
    CopyAsyncWait<kFp8PipedStages - 1>();
    Pack<T> v[kFp8PipedPacks];
    float amax = 0.0f;
#pragma unroll
    for (int j = 0; j < kFp8PipedPacks; ++j) {
      if (j * threads + threadIdx.x >= packs) break;
      *reinterpret_cast<uint4*>(&v[j]) = *place(n % kFp8PipedStages, j, 0);
      Pack<T> up;
      *reinterpret_cast<uint4*>(&up) = *place(n % kFp8PipedStages, j, 1);
#pragma unroll
      for (int e = 0; e < kSize; ++e) {
        v[j].v[e] = SiluRow<T>::Of(v[j].v[e], up.v[e]);
        amax = fmaxf(amax, fabsf(ToFloat(v[j].v[e])));
      }
    }
    const float inverse = Fp8Inverse(BlockMax(amax, largest[n % 2]), out.scale + row);
    uint8_t* to = out.q + int64_t{row} * packs * kSize;
#pragma unroll
    for (int j = 0; j < kFp8PipedPacks; ++j) {
      const int32_t i = j * threads + threadIdx.x;
      if (i >= packs) break;
      StoreFp8Pack(to + i * kSize, v[j], inverse);
    }
  }
}

}  // namespace fastllm::cuda
