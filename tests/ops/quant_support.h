// Quantised matrices for the op tests: random blocks, packed as weights are when they are loaded, and their values.
#pragma once

#include <cstring>
#include <random>
#include <vector>

#include "ops/contract/quant_linear.h"
#include "runtime/quant/pack.h"
#include "runtime/weights/tensor_source.h"

namespace fastllm::ops {

using runtime::TensorInfo;
using runtime::WeightType;

inline constexpr WeightType kTypes[] = {WeightType::kQ4_0, WeightType::kQ4_1, WeightType::kQ5_0, WeightType::kQ5_1,
                                        WeightType::kQ8_0, WeightType::kQ4_K, WeightType::kQ5_K, WeightType::kQ6_K};

// Offsets of the half-precision scales of a block.
inline std::vector<int> ScaleOffsets(WeightType type) {
  switch (type) {
    case WeightType::kQ4_1:
    case WeightType::kQ5_1:
    case WeightType::kQ4_K:
    case WeightType::kQ5_K: return {0, 2};
    case WeightType::kQ6_K: return {208};
    default: return {0};
  }
}

// Random blocks with scales of magnitude 2^-10 to 2^-7; both signs.
inline std::vector<uint8_t> RandomBlocks(WeightType type, int64_t rows, int64_t k, uint64_t seed) {
  std::mt19937_64 rng(seed);
  const int64_t bytes = runtime::WeightBlockBytes(type);
  std::vector<uint8_t> v(rows * k / runtime::WeightBlockElements(type) * bytes);
  for (uint8_t& b : v) b = static_cast<uint8_t>(rng());
  for (size_t at = 0; at < v.size(); at += bytes) {
    for (const int offset : ScaleOffsets(type)) {
      const auto half = static_cast<uint16_t>((rng() & 0x83FF) | (5 + rng() % 4) << 10);
      std::memcpy(v.data() + at + offset, &half, sizeof(half));
    }
  }
  return v;
}

// A packed matrix and its values.
struct Packed {
  std::vector<uint8_t> blocks;
  std::vector<uint8_t> memory;
  std::vector<float> values;  // [n, k]
  QuantWeight weight;
};

inline Packed MakePacked(WeightType type, int32_t n, int32_t k, uint64_t seed) {
  Packed p;
  p.blocks = RandomBlocks(type, n, k, seed);
  const QuantFormat format = runtime::QuantFormatOf(type).value();
  p.memory.resize(PackedBytes(format, n, k) + 64);
  auto* data = p.memory.data() + (64 - reinterpret_cast<uintptr_t>(p.memory.data()) % 64) % 64;
  const int64_t middle = NumPanels(n) / 2;  // in two pieces, as two threads would
  runtime::PackPanels(format, p.blocks.data(), n, k, 0, middle, data);
  runtime::PackPanels(format, p.blocks.data(), n, k, middle, NumPanels(n), data);
  p.weight = {data, n, k, format};
  p.values.resize(int64_t{n} * k);
  TensorInfo info{"w", {n, k}, type, p.blocks.data(), p.blocks.size()};
  runtime::DequantizeRows(info, 0, n, p.values.data());
  return p;
}

}  // namespace fastllm::ops
