// The GGUF block formats: one function per format writes one block's values as float32.
//
// A block holds the quantised integers of consecutive values of one row (32, or 256 for the K formats), and the
// half-precision scales that turn them into reals. Byte layouts are those of the public GGUF format; all numbers are
// little-endian and at any address. Functions are inline so that the loop over blocks (dequantize.cc) sees them whole.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

namespace fastllm::runtime {

// Half to float, exact, without branches so that loops over it become vector code. Subnormals go through an integer
// conversion, so the result does not depend on the CPU's denormals-are-zero mode.
inline float HalfToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7FFFu;
  const uint32_t normal = (magnitude << 13) + (112u << 23);   // exponent bias 15 becomes 127
  const uint32_t infinite = (magnitude << 13) | 0x7F800000u;  // infinities and NaNs keep their payload
  const uint32_t tiny = std::bit_cast<uint32_t>(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f);
  const uint32_t finite = magnitude < 0x0400u ? tiny : normal;
  return std::bit_cast<float>(sign | (magnitude >= 0x7C00u ? infinite : finite));
}

inline float LoadHalf(const uint8_t* bytes) {
  uint16_t half;
  std::memcpy(&half, bytes, sizeof(half));
  return HalfToFloat(half);
}

inline uint32_t LoadU32(const uint8_t* bytes) {
  uint32_t word;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}

// Q8_0, 34 bytes: scale d, 32 signed bytes. value = d * q.
inline void DecodeQ8_0(const uint8_t* block, float* out) {
  const float d = LoadHalf(block);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(static_cast<int8_t>(block[2 + i]));
}

// Q4_0, 18 bytes: d, 16 bytes; byte i holds value i in its low and value 16 + i in its high half. value = d * (q - 8).
inline void DecodeQ4_0(const uint8_t* block, float* out) {
  const float d = LoadHalf(block);
  const uint8_t* q = block + 2;
  for (int i = 0; i < 16; ++i) out[i] = d * static_cast<float>((q[i] & 15) - 8);
  for (int i = 0; i < 16; ++i) out[16 + i] = d * static_cast<float>((q[i] >> 4) - 8);
}

// Q4_1, 20 bytes: d, minimum m, 16 bytes as in Q4_0. value = d * q + m.
inline void DecodeQ4_1(const uint8_t* block, float* out) {
  const float d = LoadHalf(block);
  const float m = LoadHalf(block + 2);
  const uint8_t* q = block + 4;
  for (int i = 0; i < 16; ++i) out[i] = d * static_cast<float>(q[i] & 15) + m;
  for (int i = 0; i < 16; ++i) out[16 + i] = d * static_cast<float>(q[i] >> 4) + m;
}

// Q5_0, 22 bytes: d, a 32-bit word whose bit i is bit 4 of value i, 16 bytes as in Q4_0. value = d * (q - 16).
inline void DecodeQ5_0(const uint8_t* block, float* out) {
  const float d = LoadHalf(block);
  const uint32_t high = LoadU32(block + 2);
  const uint8_t* q = block + 6;
  for (int i = 0; i < 16; ++i) {
    const int low_value = (q[i] & 15) | static_cast<int>((high >> i) & 1) << 4;
    const int high_value = (q[i] >> 4) | static_cast<int>((high >> (16 + i)) & 1) << 4;
    out[i] = d * static_cast<float>(low_value - 16);
    out[16 + i] = d * static_cast<float>(high_value - 16);
  }
}

// Q5_1, 24 bytes: d, m, the word of fifth bits, 16 bytes. value = d * q + m.
inline void DecodeQ5_1(const uint8_t* block, float* out) {
  const float d = LoadHalf(block);
  const float m = LoadHalf(block + 2);
  const uint32_t high = LoadU32(block + 4);
  const uint8_t* q = block + 8;
  for (int i = 0; i < 16; ++i) {
    const int low_value = (q[i] & 15) | static_cast<int>((high >> i) & 1) << 4;
    const int high_value = (q[i] >> 4) | static_cast<int>((high >> (16 + i)) & 1) << 4;
    out[i] = d * static_cast<float>(low_value) + m;
    out[16 + i] = d * static_cast<float>(high_value) + m;
  }
}

// Q2_K, 84 bytes: 16 bytes of sub-block scale (low half) and minimum (high half), 64 bytes of 2-bit values, d, dmin.
// Each 32 bytes hold 128 values: bits 2k..2k+1 of byte j are value 32 k + j. A sub-block is 16 values.
// value = (d * scale) * q - dmin * minimum.
inline void DecodeQ2_K(const uint8_t* block, float* out) {
  const uint8_t* q = block + 16;
  const float d = LoadHalf(block + 80);
  const float dmin = LoadHalf(block + 82);
  for (int sub = 0; sub < 16; ++sub) {
    const float scale = d * static_cast<float>(block[sub] & 15);
    const float minimum = dmin * static_cast<float>(block[sub] >> 4);
    const uint8_t* bytes = q + (sub / 8) * 32 + (sub % 2) * 16;
    const int shift = sub % 8 / 2 * 2;
    for (int i = 0; i < 16; ++i) out[sub * 16 + i] = scale * static_cast<float>((bytes[i] >> shift) & 3) - minimum;
  }
}

// Q3_K, 110 bytes: 32 bytes of third bits, 64 bytes of low 2 bits (laid out as in Q2_K), 12 bytes of sixteen 6-bit
// scales offset by 32, d. Third bit of value 32 k + j: bit k of byte j. A clear third bit takes 4 off.
// Scale s: low 4 bits in half s / 8 of byte s % 8; high 2 bits at bit 2 (s / 4) of byte 8 + s % 4.
// value = d * (scale - 32) * q.
inline void DecodeQ3_K(const uint8_t* block, float* out) {
  const uint8_t* third = block;
  const uint8_t* q = block + 32;
  const uint8_t* scales = block + 96;
  const float d = LoadHalf(block + 108);
  for (int sub = 0; sub < 16; ++sub) {
    const int low = (scales[sub % 8] >> (sub / 8 * 4)) & 15;
    const int high = (scales[8 + sub % 4] >> (sub / 4 * 2)) & 3;
    const float scale = d * static_cast<float>((low | high << 4) - 32);
    const uint8_t* bytes = q + (sub / 8) * 32 + (sub % 2) * 16;
    const uint8_t* bits = third + (sub % 2) * 16;
    const int shift = sub % 8 / 2 * 2;
    const int bit = sub / 2;
    for (int i = 0; i < 16; ++i) {
      const int value = ((bytes[i] >> shift) & 3) + (((bits[i] >> bit) & 1) << 2) - 4;
      out[sub * 16 + i] = scale * static_cast<float>(value);
    }
  }
}

// The eight 6-bit scales and minimums of Q4_K and Q5_K, in 12 bytes: the first four scales in the low 6 bits of bytes
// 0..3, the first four minimums in those of bytes 4..7; of the last four, the low 4 bits in bytes 8..11 (scales in the
// low half), the high 2 bits in the top bits of bytes 0..3 (scales) and 4..7 (minimums).
inline void UnpackScales(const uint8_t* packed, uint8_t* scale, uint8_t* minimum) {
  for (int i = 0; i < 4; ++i) {
    scale[i] = packed[i] & 63;
    minimum[i] = packed[4 + i] & 63;
    scale[4 + i] = static_cast<uint8_t>((packed[8 + i] & 15) | packed[i] >> 6 << 4);
    minimum[4 + i] = static_cast<uint8_t>(packed[8 + i] >> 4 | packed[4 + i] >> 6 << 4);
  }
}

// Q4_K, 144 bytes: d, dmin, 12 bytes of scales, 128 bytes; each 32 bytes hold two sub-blocks of 32 values, the first in
// the low halves. value = (d * scale) * q - dmin * minimum.
inline void DecodeQ4_K(const uint8_t* block, float* out) {
  const float d = LoadHalf(block);
  const float dmin = LoadHalf(block + 2);
  uint8_t scale[8], minimum[8];
  UnpackScales(block + 4, scale, minimum);
  for (int sub = 0; sub < 8; ++sub) {
    const float s = d * static_cast<float>(scale[sub]);
    const float m = dmin * static_cast<float>(minimum[sub]);
    const uint8_t* q = block + 16 + sub / 2 * 32;
    const int shift = sub % 2 * 4;
    for (int i = 0; i < 32; ++i) out[sub * 32 + i] = s * static_cast<float>((q[i] >> shift) & 15) - m;
  }
}

// Q5_K, 176 bytes: as Q4_K, with 32 bytes of fifth bits before the low ones: bit k of byte j belongs to value j of
// sub-block k.
inline void DecodeQ5_K(const uint8_t* block, float* out) {
  const float d = LoadHalf(block);
  const float dmin = LoadHalf(block + 2);
  uint8_t scale[8], minimum[8];
  UnpackScales(block + 4, scale, minimum);
  const uint8_t* fifth = block + 16;
  for (int sub = 0; sub < 8; ++sub) {
    const float s = d * static_cast<float>(scale[sub]);
    const float m = dmin * static_cast<float>(minimum[sub]);
    const uint8_t* q = block + 48 + sub / 2 * 32;
    const int shift = sub % 2 * 4;
    for (int i = 0; i < 32; ++i) {
      const int value = ((q[i] >> shift) & 15) | ((fifth[i] >> sub) & 1) << 4;
      out[sub * 32 + i] = s * static_cast<float>(value) - m;
    }
  }
}

// Q6_K, 210 bytes: 128 bytes of low 4 bits, 64 bytes of high 2 bits, 16 signed byte scales, d. Each half of the block
// is 128 values: value 32 k + j has its low bits in half k / 2 of byte 32 (k % 2) + j and its high bits at bit 2 k of
// byte j. A scale covers 16 values. value = d * scale * (q - 32).
inline void DecodeQ6_K(const uint8_t* block, float* out) {
  const float d = LoadHalf(block + 208);
  for (int sub = 0; sub < 16; ++sub) {
    const int k = sub % 8 / 2;
    const uint8_t* low = block + sub / 8 * 64 + k % 2 * 32 + sub % 2 * 16;
    const uint8_t* high = block + 128 + sub / 8 * 32 + sub % 2 * 16;
    const float scale = d * static_cast<float>(static_cast<int8_t>(block[192 + sub]));
    const int low_shift = k / 2 * 4;
    const int high_shift = k * 2;
    for (int i = 0; i < 16; ++i) {
      const int value = ((low[i] >> low_shift) & 15) | ((high[i] >> high_shift) & 3) << 4;
      out[sub * 16 + i] = scale * static_cast<float>(value - 32);
    }
  }
}

}  // namespace fastllm::runtime
