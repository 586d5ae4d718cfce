// Conversions of 8-bit floats (e4m3, contract/fp8.h), for baseline code.
#pragma once

#include <bit>
#include <cstdint>

namespace fastllm::ops::cpu {

inline constexpr float kFp8Max = 448.0f;
inline constexpr uint8_t kFp8NaN = 0x7F;

// To the nearest, ties to even; what is larger than 448 becomes 448, a NaN 0x7f.
inline uint8_t FloatToFp8(float f) {
  const auto bits = std::bit_cast<uint32_t>(f);
  const auto sign = static_cast<uint8_t>(bits >> 24 & 0x80u);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return kFp8NaN;
  if (magnitude >= 0x43E00000u) return static_cast<uint8_t>(sign | 0x7Eu);  // 448 and more
  if (magnitude < 0x3C800000u) {  // below 2^-6: in units of 2^-9, the sum with 2^14 rounds to them
    const float sum = std::bit_cast<float>(magnitude) + 16384.0f;
    return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(sum) - 0x46800000u));
  }
  return static_cast<uint8_t>(sign | ((magnitude + 0x7FFFFu + (magnitude >> 20 & 1u) - (120u << 23)) >> 20));
}

// Exact.
inline float Fp8ToFloat(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24;
  const uint32_t magnitude = code & 0x7Fu;
  if (magnitude == 0x7Fu) return std::bit_cast<float>(sign | 0x7FC00000u);
  if (magnitude < 8) {
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-9f));
  }
  return std::bit_cast<float>(sign | ((magnitude << 20) + (120u << 23)));
}

}  // namespace fastllm::ops::cpu
