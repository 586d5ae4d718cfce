// Device data of gemm_bench, made and compared on the device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace fastllm::gemm_bench {

// count bfloat16 values, nearly normal, none repeated in any order that a product could hide behind.
void FillRandom(void* out, size_t count, uint64_t seed, float scale, cudaStream_t stream);

// sums[0] += (a - b)^2, sums[1] += b^2 over count bfloat16 values, sums[2] += elements that differ in their bits; a NaN
// makes sums[0] a NaN. sums: device memory.
void Compare(const void* a, const void* b, size_t count, double* sums, cudaStream_t stream);

}  // namespace fastllm::gemm_bench
