// Element types, 16-byte packs of them and conversions to and from float32.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

namespace fastllm::cuda {

using bf16 = __nv_bfloat16;
using fp8 = __nv_fp8_e4m3;  // contract/fp8.h; only stored, never computed with

__device__ __forceinline__ float ToFloat(float x) { return x; }
__device__ __forceinline__ float ToFloat(__half x) { return __half2float(x); }
__device__ __forceinline__ float ToFloat(bf16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float ToFloat(fp8 x) { return static_cast<float>(x); }

template <typename T>
__device__ __forceinline__ T FromFloat(float x) {
  if constexpr (sizeof(T) == 4) {
    return x;
  } else if constexpr (__is_same(T, __half)) {
    return __float2half_rn(x);
  } else {
    return __float2bfloat16_rn(x);
  }
}

// What one thread moves at a time.
template <typename T>
struct alignas(16) Pack {
  static constexpr int kSize = 16 / sizeof(T);
  T v[kSize];
};

template <typename T>
__device__ __forceinline__ Pack<T> LoadPack(const T* p) {
  Pack<T> r;
  *reinterpret_cast<uint4*>(&r) = *reinterpret_cast<const uint4*>(p);
  return r;
}

template <typename T>
__device__ __forceinline__ void StorePack(T* p, const Pack<T>& x) {
  *reinterpret_cast<uint4*>(p) = *reinterpret_cast<const uint4*>(&x);
}

// Two floats as one 32-bit register of T; lo in the low half.
template <typename T>
__device__ __forceinline__ uint32_t PackTwo(float lo, float hi) {
  if constexpr (__is_same(T, __half)) {
    const __half2 h = __floats2half2_rn(lo, hi);
    return *reinterpret_cast<const uint32_t*>(&h);
  } else {
    const __nv_bfloat162 h = __floats2bfloat162_rn(lo, hi);
    return *reinterpret_cast<const uint32_t*>(&h);
  }
}

// Two floats in 8 bits each, to the nearest, ties to even; what is larger than 448 becomes 448, a NaN 0x7f. lo in the
// low byte.
__device__ __forceinline__ uint16_t PackTwoFp8(float lo, float hi) {
  return __nv_cvt_float2_to_fp8x2(make_float2(lo, hi), __NV_SATFINITE, __NV_E4M3);
}

// The low two bytes, exactly, as one 32-bit register of T.
template <typename T>
__device__ __forceinline__ uint32_t UnpackTwoFp8(uint32_t codes) {
  const __half2_raw raw = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes), __NV_E4M3);
  const __half2 h = *reinterpret_cast<const __half2*>(&raw);
  if constexpr (__is_same(T, __half)) {
    return *reinterpret_cast<const uint32_t*>(&h);
  } else {
    const float2 f = __half22float2(h);
    return PackTwo<T>(f.x, f.y);
  }
}

}  // namespace fastllm::cuda
