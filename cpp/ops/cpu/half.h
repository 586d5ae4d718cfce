// Conversions of the 16-bit float formats, for baseline code.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

namespace fastllm::ops::cpu {

// Exact. Subnormals go through an integer conversion, so that the result does not depend on the CPU's
// denormals-are-zero mode.
inline float HalfToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7FFFu;
  if (magnitude < 0x0400u) {
    const uint32_t tiny = std::bit_cast<uint32_t>(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f);
    return std::bit_cast<float>(sign | tiny);
  }
  const uint32_t infinite = (magnitude << 13) | 0x7F800000u;
  return std::bit_cast<float>(sign | (magnitude >= 0x7C00u ? infinite : (magnitude << 13) + (112u << 23)));
}

inline float HalfToFloat(const uint8_t* bytes) {
  uint16_t half;
  std::memcpy(&half, bytes, sizeof(half));
  return HalfToFloat(half);
}

}  // namespace fastllm::ops::cpu
