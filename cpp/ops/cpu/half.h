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

// To nearest even; what overflows becomes infinite, a NaN stays one.
inline uint16_t FloatToBFloat(float f) {
  const auto bits = std::bit_cast<uint32_t>(f);
  if (f != f) return static_cast<uint16_t>((bits | 0x400000u) >> 16);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

inline uint16_t FloatToHalf(float f) {
  const auto bits = std::bit_cast<uint32_t>(f);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<uint16_t>(sign | 0x7E00u | (magnitude >> 13 & 0x3FFu));
  if (magnitude >= 0x477FF000u) return sign | 0x7C00u;  // 65520 and more
  if (magnitude < 0x38800000u) {                        // below 2^-14: in units of 2^-24, the sum rounds to them
    const float sum = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(sum) - 0x3F000000u));
  }
  return static_cast<uint16_t>(sign | ((magnitude + 0xFFFu + (magnitude >> 13 & 1u) - (112u << 23)) >> 13));
}

}  // namespace fastllm::ops::cpu
