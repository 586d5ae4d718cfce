#include "ops/cpu/int8_cache.h"

#include <bit>

namespace fastllm::ops::cpu {
namespace {

constexpr float kLeastMax = 1e-30f;  // 127 / amax would not be finite below
// Added and taken off again it rounds a number below 2^22 to the nearest integer, ties to even.
constexpr float kRounder = 12582912.0f;

}  // namespace

// Loops that the compiler vectorises for the baseline.
float QuantizeCacheRow(const float* x, int32_t n, int8_t* q) {
  int32_t max = 0;  // of the magnitudes as integers: a NaN is above all numbers
  for (int32_t i = 0; i < n; ++i) {
    const int32_t magnitude = std::bit_cast<int32_t>(x[i]) & 0x7FFFFFFF;
    max = magnitude > max ? magnitude : max;
  }
  const float amax = std::bit_cast<float>(max);
  if (!(amax >= kLeastMax) || max >= 0x7F800000) {
    for (int32_t i = 0; i < n; ++i) q[i] = max >= 0x7F800000 ? 1 : 0;  // 1: the scale spoils every element
    return max >= 0x7F800000 ? amax : 0.0f;
  }
  const float inverse = 127.0f / amax;
  for (int32_t i = 0; i < n; ++i) {
    const float rounded = x[i] * inverse + kRounder;
    q[i] = static_cast<int8_t>(std::bit_cast<int32_t>(rounded) - std::bit_cast<int32_t>(kRounder));
  }
  return amax / 127.0f;
}

void WriteInt8Heads(const KvCacheView& c, const float* from, int8_t* to, float* scales, int64_t slot) {
  const int64_t block = slot / c.block_size;
  const int64_t row = slot % c.block_size;
  for (int64_t h = 0; h < c.num_kv_heads; ++h) {
    const int64_t at = (block * c.num_kv_heads + h) * c.block_size + row;
    scales[at] = QuantizeCacheRow(from + h * c.head_dim, c.head_dim, to + at * c.head_dim);
  }
}

}  // namespace fastllm::ops::cpu
