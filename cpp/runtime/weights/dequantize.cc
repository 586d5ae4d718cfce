#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "core/base/check.h"
#include "runtime/weights/block_formats.h"
#include "runtime/weights/quoted.h"
#include "runtime/weights/tensor_source.h"

namespace fastllm::runtime {
namespace {

template <void (*Decode)(const uint8_t*, float*)>
void DecodeBlocks(WeightType type, const uint8_t* data, int64_t count, float* out) {
  const int64_t elements = WeightBlockElements(type);
  const int64_t bytes = WeightBlockBytes(type);
  const int64_t blocks = count / elements;
  for (int64_t i = 0; i < blocks; ++i) Decode(data + i * bytes, out + i * elements);
}

void DecodeF16(const uint8_t* data, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = LoadHalf(data + 2 * i);
}

// bfloat16 is the upper half of a float32.
void DecodeBF16(const uint8_t* data, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    uint16_t upper;
    std::memcpy(&upper, data + 2 * i, sizeof(upper));
    out[i] = std::bit_cast<float>(static_cast<uint32_t>(upper) << 16);
  }
}

// 4 bits of exponent with a bias of 7, 3 of mantissa, no infinity; every value is exact in float32.
void DecodeF8E4M3(const uint8_t* data, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    const int exponent = data[i] >> 3 & 15, mantissa = data[i] & 7;
    float value = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
    if ((data[i] & 0x7F) == 0x7F) value = std::numeric_limits<float>::quiet_NaN();
    out[i] = (data[i] & 0x80) != 0 ? -value : value;
  }
}

// count values from the start of a block.
void Decode(WeightType type, const uint8_t* data, int64_t count, float* out) {
  switch (type) {
    case WeightType::kF32: std::memcpy(out, data, static_cast<size_t>(count) * sizeof(float)); return;
    case WeightType::kF16: return DecodeF16(data, count, out);
    case WeightType::kBF16: return DecodeBF16(data, count, out);
    case WeightType::kF8E4M3: return DecodeF8E4M3(data, count, out);
    case WeightType::kQ8_0: return DecodeBlocks<DecodeQ8_0>(type, data, count, out);
    case WeightType::kQ4_0: return DecodeBlocks<DecodeQ4_0>(type, data, count, out);
    case WeightType::kQ4_1: return DecodeBlocks<DecodeQ4_1>(type, data, count, out);
    case WeightType::kQ5_0: return DecodeBlocks<DecodeQ5_0>(type, data, count, out);
    case WeightType::kQ5_1: return DecodeBlocks<DecodeQ5_1>(type, data, count, out);
    case WeightType::kQ2_K: return DecodeBlocks<DecodeQ2_K>(type, data, count, out);
    case WeightType::kQ3_K: return DecodeBlocks<DecodeQ3_K>(type, data, count, out);
    case WeightType::kQ4_K: return DecodeBlocks<DecodeQ4_K>(type, data, count, out);
    case WeightType::kQ5_K: return DecodeBlocks<DecodeQ5_K>(type, data, count, out);
    case WeightType::kQ6_K: return DecodeBlocks<DecodeQ6_K>(type, data, count, out);
  }
  FASTLLM_CHECK(false, "weight type " + std::to_string(static_cast<int>(type)));
}

}  // namespace

void DequantizeRows(const TensorInfo& tensor, int64_t row_begin, int64_t row_end, float* out) {
  const int64_t rows = tensor.shape.empty() ? 1 : tensor.shape[0];
  FASTLLM_CHECK(row_begin >= 0 && row_begin <= row_end && row_end <= rows,
                "rows [" + std::to_string(row_begin) + ", " + std::to_string(row_end) + ") of " + Quoted(tensor.name) +
                    ", which has " + std::to_string(rows));
  const int64_t row = rows == 0 ? 0 : tensor.numel() / rows;
  if (row_begin == row_end || row == 0) return;
  const int64_t block = WeightBlockElements(tensor.type);
  // A one-dimensional tensor is one value a row: a range of it must still start and end between blocks.
  FASTLLM_CHECK(row_begin * row % block == 0 && row_end * row % block == 0,
                "rows of " + Quoted(tensor.name) + " are not whole " + WeightTypeName(tensor.type) + " blocks");
  const uint8_t* data = tensor.data + row_begin * row / block * WeightBlockBytes(tensor.type);
  Decode(tensor.type, data, (row_end - row_begin) * row, out);
}

}  // namespace fastllm::runtime
