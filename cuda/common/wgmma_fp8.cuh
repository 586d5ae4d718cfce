// Warpgroup products of 8-bit floats (sm_90a only): d (+)= a b, a 64x32 and b 32xN of e4m3 from shared memory, both
// with k along their rows; d as in wgmma.cuh. N is twice the number of d's elements.
#pragma once

#include <cstdint>

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

namespace fastllm::cuda {

// clang-format off
#define FASTLLM_FP8_4 "%0, %1, %2, %3"
#define FASTLLM_FP8_8 FASTLLM_FP8_4 ", %4, %5, %6, %7"
#define FASTLLM_FP8_16 FASTLLM_FP8_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define FASTLLM_FP8_32 FASTLLM_FP8_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define FASTLLM_FP8_64 FASTLLM_FP8_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46" \
  ", %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define FASTLLM_FP8_96 FASTLLM_FP8_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78" \
  ", %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define FASTLLM_FP8_128 FASTLLM_FP8_96 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108" \
  ", %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define FASTLLM_FP8_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define FASTLLM_FP8_D8(i) FASTLLM_FP8_D4(i), FASTLLM_FP8_D4(i + 4)
#define FASTLLM_FP8_D16(i) FASTLLM_FP8_D8(i), FASTLLM_FP8_D8(i + 8)
#define FASTLLM_FP8_D32(i) FASTLLM_FP8_D16(i), FASTLLM_FP8_D16(i + 16)
#define FASTLLM_FP8_D64(i) FASTLLM_FP8_D32(i), FASTLLM_FP8_D32(i + 32)
#define FASTLLM_FP8_D96(i) FASTLLM_FP8_D64(i), FASTLLM_FP8_D32(i + 64)
#define FASTLLM_FP8_D128(i) FASTLLM_FP8_D64(i), FASTLLM_FP8_D64(i + 64)
// clang-format on

// N, accumulators (text), the numbers of a, b and add (text), the accumulators.
#define FASTLLM_FP8(n, names, a_at, b_at, add_at, registers)                                           \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" add_at ", 0;\nwgmma.mma_async.sync.aligned.m64n" n \
               "k32.f32.e4m3.e4m3 {" names "}, %" a_at ", %" b_at ", p, 1, 1;\n}\n"                    \
               : registers                                                                             \
               : "l"(a), "l"(b), "r"(static_cast<int32_t>(add)))

__device__ __forceinline__ void MultiplyFp8(float (&d)[4], uint64_t a, uint64_t b, bool add) {
  FASTLLM_FP8("8", FASTLLM_FP8_4, "4", "5", "6", FASTLLM_FP8_D4(0));
}
__device__ __forceinline__ void MultiplyFp8(float (&d)[8], uint64_t a, uint64_t b, bool add) {
  FASTLLM_FP8("16", FASTLLM_FP8_8, "8", "9", "10", FASTLLM_FP8_D8(0));
}
__device__ __forceinline__ void MultiplyFp8(float (&d)[16], uint64_t a, uint64_t b, bool add) {
  FASTLLM_FP8("32", FASTLLM_FP8_16, "16", "17", "18", FASTLLM_FP8_D16(0));
}
__device__ __forceinline__ void MultiplyFp8(float (&d)[32], uint64_t a, uint64_t b, bool add) {
  FASTLLM_FP8("64", FASTLLM_FP8_32, "32", "33", "34", FASTLLM_FP8_D32(0));
}
__device__ __forceinline__ void MultiplyFp8(float (&d)[64], uint64_t a, uint64_t b, bool add) {
  FASTLLM_FP8("128", FASTLLM_FP8_64, "64", "65", "66", FASTLLM_FP8_D64(0));
}
__device__ __forceinline__ void MultiplyFp8(float (&d)[96], uint64_t a, uint64_t b, bool add) {
  FASTLLM_FP8("192", FASTLLM_FP8_96, "96", "97", "98", FASTLLM_FP8_D96(0));
}
__device__ __forceinline__ void MultiplyFp8(float (&d)[128], uint64_t a, uint64_t b, bool add) {
  FASTLLM_FP8("256", FASTLLM_FP8_128, "128", "129", "130", FASTLLM_FP8_D128(0));
}

#undef FASTLLM_FP8

}  // namespace fastllm::cuda

#endif  // __CUDA_ARCH_FEAT_SM90_ALL
