// Conversions between float32 and the 16-bit types of the KV cache.
#pragma once

#include "ops/cpu/kernels.h"

namespace fastllm::ops::cpu {
namespace {

// n values to float32.
template <Vec (*kLoad)(const uint16_t*)>
inline void Widen(const uint16_t* x, int32_t n, float* out) {
  int32_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Store(out + i, kLoad(x + i));
  if (i < n) {
    uint16_t last[kLanes] = {};
    __builtin_memcpy(last, x + i, static_cast<size_t>(n - i) * sizeof(uint16_t));
    StoreFirst(out + i, kLoad(last), n - i);
  }
}

// n bytes times scale.
inline void WidenBytes(const int8_t* x, int32_t n, float scale, float* out) {
  const Vec s = Set(scale);
  int32_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Store(out + i, Mul(LoadI8(x + i), s));
  if (i < n) {
    int8_t last[kLanes] = {};
    __builtin_memcpy(last, x + i, static_cast<size_t>(n - i));
    StoreFirst(out + i, Mul(LoadI8(last), s), n - i);
  }
}

template <void (*kStore)(uint16_t*, Vec)>
inline void NarrowTo(const float* x, int64_t n, uint16_t* out) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) kStore(out + i, Load(x + i));
  if (i < n) {
    uint16_t last[kLanes];
    kStore(last, LoadFirst(x + i, static_cast<int>(n - i)));
    __builtin_memcpy(out + i, last, static_cast<size_t>(n - i) * sizeof(uint16_t));
  }
}

void Narrow(const float* x, int64_t n, DType to, void* out) {
  switch (to) {
    case DType::kF32: __builtin_memcpy(out, x, static_cast<size_t>(n) * sizeof(float)); return;
    case DType::kF16: return NarrowTo<StoreF16>(x, n, static_cast<uint16_t*>(out));
    case DType::kBF16: return NarrowTo<StoreBF16>(x, n, static_cast<uint16_t*>(out));
    case DType::kI8: return;      // never comes here: WriteHeads
    case DType::kF8E4M3: return;  // never comes here: WriteHeads
  }
}

}  // namespace
}  // namespace fastllm::ops::cpu
