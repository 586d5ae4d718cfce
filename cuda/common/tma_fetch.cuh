// Boxes of mapped tensors that the L2 is asked for (sm_90a only), as the copies of tma.cuh name them.
#pragma once

#include <cuda.h>

#include <cstdint>

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

namespace fastllm::cuda {

__device__ __forceinline__ void FetchBox4(const CUtensorMap* map, int32_t c0, int32_t c1, int32_t c2, int32_t c3) {
  asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];\n" ::"l"(map), "r"(c0), "r"(c1),
               "r"(c2), "r"(c3)
               : "memory");
}
__device__ __forceinline__ void FetchBox2(const CUtensorMap* map, int32_t c0, int32_t c1) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];\n" ::"l"(map), "r"(c0), "r"(c1)
               : "memory");
}

}  // namespace fastllm::cuda

#endif  // __CUDA_ARCH_FEAT_SM90_ALL
