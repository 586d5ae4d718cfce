// Hopper's warpgroup matrix instructions (sm_90a only; the functions may be instantiated, not run, elsewhere). All
// threads of four neighbouring warps call them together. Layouts as in the PTX manual: the accumulator of m64nNk16
// holds, in element 4 j + e of warp w, row 16 w + lane / 4 + 8 (e / 2), column 8 j + 2 (lane % 4) + e % 2.
#pragma once

#include <cstdint>

#include "cuda/common/types.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

namespace fastllm::cuda {

// Descriptor of a shared-memory operand in rows of kRowBytes, swizzled: 16-byte chunk c of row r lies at c ^ (r % 8)
// in rows of 128 bytes, at c ^ (r / 2 % 4) in rows of 64. Bases are aligned to 8 rows. group: bytes from one 8-row
// group to the next. atom: bytes from one block of columns (a row's) to the next, for operands whose rows run along K
// (transposed).
template <int kRowBytes>
__device__ __forceinline__ uint64_t SwizzledOperand(uint32_t address, uint32_t group, uint32_t atom) {
  static_assert(kRowBytes == 128 || kRowBytes == 64);
  return static_cast<uint64_t>((address & 0x3ffff) >> 4) | static_cast<uint64_t>(atom >> 4) << 16 |
         static_cast<uint64_t>(group >> 4) << 32 | (kRowBytes == 128 ? uint64_t{1} : uint64_t{2}) << 62;
}

// The operand `bytes` further on.
__device__ __forceinline__ uint64_t OperandAt(uint64_t operand, uint32_t bytes) {
  return (operand & 0xffffffff00000000) | (static_cast<uint32_t>(operand) + (bytes >> 4));
}

// Before the first instruction that reads registers written since the last wait.
__device__ __forceinline__ void WarpgroupFence() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
__device__ __forceinline__ void WarpgroupCommit() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void WarpgroupWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving uses of accumulators across a wait.
template <int kSize>
__device__ __forceinline__ void Pin(float (&d)[kSize]) {
#pragma unroll
  for (int i = 0; i < kSize; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int kSize>
__device__ __forceinline__ void Pin(uint32_t (&d)[kSize][4]) {
#pragma unroll
  for (int i = 0; i < kSize * 4; ++i) asm volatile("" : "+r"(d[i / 4][i % 4])::"memory");
}
// Makes this thread's shared-memory writes visible to the matrix units and the copy engine.
__device__ __forceinline__ void FenceForMatrixUnits() { asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory"); }

// Operand lists of the instructions below: names in the text, and registers from d[i] on.
#define FASTLLM_NAMES_0                                                                        \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
  "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define FASTLLM_NAMES_32                                                                                 \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, " \
  "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define FASTLLM_NAMES_64                                                                                 \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, " \
  "%84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define FASTLLM_NAMES_96                                                                                           \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, " \
  "%115, "                                                                                                         \
  "%116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define FASTLLM_NAMES_16_AT_0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define FASTLLM_NAMES_16_AT_32 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define FASTLLM_REGISTERS_8(d, i)                                                                             \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define FASTLLM_REGISTERS_16(d, i) FASTLLM_REGISTERS_8(d, i), FASTLLM_REGISTERS_8(d, i + 8)
#define FASTLLM_REGISTERS_32(d, i) FASTLLM_REGISTERS_16(d, i), FASTLLM_REGISTERS_16(d, i + 16)

// Columns, element type, accumulators (text), then the numbers of a, b, add (text), then the accumulators.
#define FASTLLM_SHARED(n, type, names, a_at, b_at, add_at, ...)                                                        \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" add_at ", 0;\nwgmma.mma_async.sync.aligned.m64n" n "k16.f32." type \
               "." type " {" names "}, %" a_at ", %" b_at ", p, 1, 1, 0, 0;\n}\n"                                      \
               : __VA_ARGS__                                                                                           \
               : "l"(a), "l"(b), "r"(static_cast<int32_t>(add)))

// d (+)= a b; a 64x16 and b 16xN from shared memory, both with rows along the long side (b as [n][k]).
template <typename T>
__device__ __forceinline__ void MultiplyShared(float (&d)[64], uint64_t a, uint64_t b, bool add) {
  if constexpr (__is_same(T, __half)) {
    FASTLLM_SHARED("128", "f16", FASTLLM_NAMES_0 ", " FASTLLM_NAMES_32, "64", "65", "66", FASTLLM_REGISTERS_32(d, 0),
                   FASTLLM_REGISTERS_32(d, 32));
  } else {
    FASTLLM_SHARED("128", "bf16", FASTLLM_NAMES_0 ", " FASTLLM_NAMES_32, "64", "65", "66", FASTLLM_REGISTERS_32(d, 0),
                   FASTLLM_REGISTERS_32(d, 32));
  }
}
template <typename T>
__device__ __forceinline__ void MultiplyShared(float (&d)[32], uint64_t a, uint64_t b, bool add) {
  if constexpr (__is_same(T, __half)) {
    FASTLLM_SHARED("64", "f16", FASTLLM_NAMES_0, "32", "33", "34", FASTLLM_REGISTERS_32(d, 0));
  } else {
    FASTLLM_SHARED("64", "bf16", FASTLLM_NAMES_0, "32", "33", "34", FASTLLM_REGISTERS_32(d, 0));
  }
}

template <typename T>
__device__ __forceinline__ void MultiplyShared(float (&d)[16], uint64_t a, uint64_t b, bool add) {
  if constexpr (__is_same(T, __half)) {
    FASTLLM_SHARED("32", "f16", FASTLLM_NAMES_16_AT_0, "16", "17", "18", FASTLLM_REGISTERS_16(d, 0));
  } else {
    FASTLLM_SHARED("32", "bf16", FASTLLM_NAMES_16_AT_0, "16", "17", "18", FASTLLM_REGISTERS_16(d, 0));
  }
}
template <typename T>
__device__ __forceinline__ void MultiplyShared(float (&d)[128], uint64_t a, uint64_t b, bool add) {
#define FASTLLM_WIDE(type)                                                                                       \
  FASTLLM_SHARED("256", type, FASTLLM_NAMES_0 ", " FASTLLM_NAMES_32 ", " FASTLLM_NAMES_64 ", " FASTLLM_NAMES_96, \
                 "128", "129", "130", FASTLLM_REGISTERS_32(d, 0), FASTLLM_REGISTERS_32(d, 32),                   \
                 FASTLLM_REGISTERS_32(d, 64), FASTLLM_REGISTERS_32(d, 96))
  if constexpr (__is_same(T, __half)) {
    FASTLLM_WIDE("f16");
  } else {
    FASTLLM_WIDE("bf16");
  }
#undef FASTLLM_WIDE
}

// d (+)= a b; a 64x16 from registers (as A of m16n8k16), b 16x128 from shared memory as [n][k].
template <typename T>
__device__ __forceinline__ void MultiplyRegistersByRows(float (&d)[64], const uint32_t (&a)[4], uint64_t b, bool add) {
#define FASTLLM_BY_ROWS(type)                                                                                         \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type \
               " {" FASTLLM_NAMES_0 ", " FASTLLM_NAMES_32 "}, {%64, %65, %66, %67}, %68, p, 1, 1, 0;\n}\n"            \
               : FASTLLM_REGISTERS_32(d, 0), FASTLLM_REGISTERS_32(d, 32)                                              \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int32_t>(add)))
  if constexpr (__is_same(T, __half)) {
    FASTLLM_BY_ROWS("f16");
  } else {
    FASTLLM_BY_ROWS("bf16");
  }
#undef FASTLLM_BY_ROWS
}

#define FASTLLM_FROM_REGISTERS(n, type, names, a0, a1, a2, a3, b_at, ...)                                             \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " {" names "}, {%" a0 ", %" a1 ", %" a2 \
               ", %" a3 "}, %" b_at ", 1, 1, 1, 1;\n"                                                                 \
               : __VA_ARGS__                                                                                          \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

// d += a b; a 64x16 from registers (as A of m16n8k16), b 16xN from shared memory as [k][n].
template <typename T>
__device__ __forceinline__ void MultiplyRegisters(float (&d)[128], const uint32_t (&a)[4], uint64_t b) {
  if constexpr (__is_same(T, __half)) {
    FASTLLM_FROM_REGISTERS("256", "f16",
                           FASTLLM_NAMES_0 ", " FASTLLM_NAMES_32 ", " FASTLLM_NAMES_64 ", " FASTLLM_NAMES_96, "128",
                           "129", "130", "131", "132", FASTLLM_REGISTERS_32(d, 0), FASTLLM_REGISTERS_32(d, 32),
                           FASTLLM_REGISTERS_32(d, 64), FASTLLM_REGISTERS_32(d, 96));
  } else {
    FASTLLM_FROM_REGISTERS("256", "bf16",
                           FASTLLM_NAMES_0 ", " FASTLLM_NAMES_32 ", " FASTLLM_NAMES_64 ", " FASTLLM_NAMES_96, "128",
                           "129", "130", "131", "132", FASTLLM_REGISTERS_32(d, 0), FASTLLM_REGISTERS_32(d, 32),
                           FASTLLM_REGISTERS_32(d, 64), FASTLLM_REGISTERS_32(d, 96));
  }
}
template <typename T>
__device__ __forceinline__ void MultiplyRegisters(float (&d)[64], const uint32_t (&a)[4], uint64_t b) {
  if constexpr (__is_same(T, __half)) {
    FASTLLM_FROM_REGISTERS("128", "f16", FASTLLM_NAMES_0 ", " FASTLLM_NAMES_32, "64", "65", "66", "67", "68",
                           FASTLLM_REGISTERS_32(d, 0), FASTLLM_REGISTERS_32(d, 32));
  } else {
    FASTLLM_FROM_REGISTERS("128", "bf16", FASTLLM_NAMES_0 ", " FASTLLM_NAMES_32, "64", "65", "66", "67", "68",
                           FASTLLM_REGISTERS_32(d, 0), FASTLLM_REGISTERS_32(d, 32));
  }
}
template <typename T>
__device__ __forceinline__ void MultiplyRegisters(float (&d)[48], const uint32_t (&a)[4], uint64_t b) {
  if constexpr (__is_same(T, __half)) {
    FASTLLM_FROM_REGISTERS("96", "f16", FASTLLM_NAMES_0 ", " FASTLLM_NAMES_16_AT_32, "48", "49", "50", "51", "52",
                           FASTLLM_REGISTERS_32(d, 0), FASTLLM_REGISTERS_16(d, 32));
  } else {
    FASTLLM_FROM_REGISTERS("96", "bf16", FASTLLM_NAMES_0 ", " FASTLLM_NAMES_16_AT_32, "48", "49", "50", "51", "52",
                           FASTLLM_REGISTERS_32(d, 0), FASTLLM_REGISTERS_16(d, 32));
  }
}
template <typename T>
__device__ __forceinline__ void MultiplyRegisters(float (&d)[32], const uint32_t (&a)[4], uint64_t b) {
  if constexpr (__is_same(T, __half)) {
    FASTLLM_FROM_REGISTERS("64", "f16", FASTLLM_NAMES_0, "32", "33", "34", "35", "36", FASTLLM_REGISTERS_32(d, 0));
  } else {
    FASTLLM_FROM_REGISTERS("64", "bf16", FASTLLM_NAMES_0, "32", "33", "34", "35", "36", FASTLLM_REGISTERS_32(d, 0));
  }
}

#undef FASTLLM_SHARED
#undef FASTLLM_FROM_REGISTERS

}  // namespace fastllm::cuda

#endif  // __CUDA_ARCH_FEAT_SM90_ALL
