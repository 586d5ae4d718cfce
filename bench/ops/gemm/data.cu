#include "bench/ops/gemm/data.h"

#include "cuda/common/types.cuh"

namespace fastllm::gemm_bench {
namespace {

using cuda::bf16;

__device__ uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

__global__ void FillKernel(bf16* out, size_t count, uint64_t seed, float scale) {
  const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    const uint64_t r = Mix(i + seed * 0x5851f42d4c957f2dull);
    float sum = -2.0f;  // of four uniform numbers, less their mean; deviation sqrt(1/3)
    for (int part = 0; part < 4; ++part) sum += static_cast<float>((r >> (16 * part)) & 0xffff) * (1.0f / 65536.0f);
    out[i] = __float2bfloat16_rn(sum * 1.7320508f * scale);
  }
}

__global__ void CompareKernel(const bf16* a, const bf16* b, size_t count, double* sums) {
  double difference = 0.0, size = 0.0, other = 0.0;
  const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    const float x = __bfloat162float(a[i]), y = __bfloat162float(b[i]);
    difference += static_cast<double>(x - y) * (x - y);
    size += static_cast<double>(y) * y;
    other += __bfloat16_as_ushort(a[i]) != __bfloat16_as_ushort(b[i]) ? 1.0 : 0.0;
  }
  for (int lane = 16; lane > 0; lane /= 2) {
    difference += __shfl_xor_sync(~0u, difference, lane);
    size += __shfl_xor_sync(~0u, size, lane);
    other += __shfl_xor_sync(~0u, other, lane);
  }
  if (threadIdx.x % 32 != 0) return;
  atomicAdd(sums, difference);
  atomicAdd(sums + 1, size);
  atomicAdd(sums + 2, other);
}

}  // namespace

void FillRandom(void* out, size_t count, uint64_t seed, float scale, cudaStream_t stream) {
  FillKernel<<<1024, 256, 0, stream>>>(static_cast<bf16*>(out), count, seed, scale);
}

void Compare(const void* a, const void* b, size_t count, double* sums, cudaStream_t stream) {
  CompareKernel<<<512, 256, 0, stream>>>(static_cast<const bf16*>(a), static_cast<const bf16*>(b), count, sums);
}

}  // namespace fastllm::gemm_bench
