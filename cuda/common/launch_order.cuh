// Programmatic dependent launch (sm_90 and up): a kernel that was launched with it may start while the one before it
// still runs. Elsewhere, and in kernels launched without it, these do nothing.
#pragma once

#include <cstdint>

namespace fastllm::cuda {

// Pointers that are read behind this must not be `const T* __restrict__` parameters: the compiler takes what they point
// to for constant over the whole kernel and may read it earlier.
//
// Returns when the kernels before this one are done and what they wrote can be read.
__device__ __forceinline__ void WaitForPrevious() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}

// The next kernel may start once every block has said so or ended. It still waits for what this one writes.
__device__ __forceinline__ void AllowNext() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}

}  // namespace fastllm::cuda
