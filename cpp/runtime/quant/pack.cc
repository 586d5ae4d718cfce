#include "runtime/quant/pack.h"

#include <algorithm>
#include <cstring>

#include "runtime/weights/block_formats.h"

namespace fastllm::runtime {
namespace {

using ops::kQuantBlock;
using ops::kQuantPanel;
using ops::QuantFormat;
using ops::QuantPanelLayout;
using ops::QuantTraits;

// One panel in the making.
class PanelWriter {
 public:
  PanelWriter(uint8_t* data, const QuantPanelLayout& layout) : data_(data), layout_(layout) {}

  // The 16 bytes of a block whose byte t has values t and 16 + t, as Q4_0 and its like store them.
  void Nibbles(int64_t b, int32_t lane, const uint8_t* bytes) {
    uint8_t* to = data_ + (b * 4 * kQuantPanel + lane) * 4;
    for (int j = 0; j < 4; ++j) std::memcpy(to + j * kQuantPanel * 4, bytes + 4 * j, 4);
  }
  // Bit i of `bits` is bit 4 of value i.
  void FifthBits(int64_t b, int32_t lane, uint32_t bits) {
    for (int g = 0; g < 8; ++g) {
      uint8_t* at = data_ + layout_.high + (b * 8 + g) * 8;
      uint64_t word;
      std::memcpy(&word, at, sizeof(word));
      word |= static_cast<uint64_t>((bits >> (4 * g)) & 15) << (4 * lane);
      std::memcpy(at, &word, sizeof(word));
    }
  }
  // 32 bytes; flip is 0x80 for signed ones.
  void Bytes(int64_t b, int32_t lane, const uint8_t* bytes, uint8_t flip) {
    uint8_t* to = data_ + (b * 8 * kQuantPanel + lane) * 4;
    for (int g = 0; g < 8; ++g) {
      uint32_t four;
      std::memcpy(&four, bytes + 4 * g, sizeof(four));
      four ^= flip * 0x01010101u;
      std::memcpy(to + g * kQuantPanel * 4, &four, sizeof(four));
    }
  }
  void HalfD(int64_t b, int32_t lane, const uint8_t* half) { Put(layout_.d, b, lane, half, 2); }
  void HalfM(int64_t b, int32_t lane, const uint8_t* half) { Put(layout_.m, b, lane, half, 2); }
  void FloatD(int64_t group, int32_t lane, float d) { Put(layout_.d, group, lane, &d, 4); }
  void FloatM(int64_t b, int32_t lane, float m) { Put(layout_.m, b, lane, &m, 4); }

 private:
  void Put(int64_t plane, int64_t index, int32_t lane, const void* from, int bytes) {
    std::memcpy(data_ + plane + (index * kQuantPanel + lane) * bytes, from, bytes);
  }

  uint8_t* data_;
  QuantPanelLayout layout_;
};

// Blocks of 32 values.
void PackSmall(QuantFormat format, const uint8_t* block, int64_t b, int32_t lane, PanelWriter& w) {
  w.HalfD(b, lane, block);
  switch (format) {
    case QuantFormat::kQ4_0: return w.Nibbles(b, lane, block + 2);
    case QuantFormat::kQ4_1: w.HalfM(b, lane, block + 2); return w.Nibbles(b, lane, block + 4);
    case QuantFormat::kQ5_0: w.FifthBits(b, lane, LoadU32(block + 2)); return w.Nibbles(b, lane, block + 6);
    case QuantFormat::kQ5_1:
      w.HalfM(b, lane, block + 2);
      w.FifthBits(b, lane, LoadU32(block + 4));
      return w.Nibbles(b, lane, block + 8);
    default: return w.Bytes(b, lane, block + 2, 0x80);  // Q8_0
  }
}

// Q4_K and Q5_K: eight sub-blocks of 32 values, two to each 32 bytes.
void PackMiddle(QuantFormat format, const uint8_t* block, int64_t super, int32_t lane, PanelWriter& w) {
  const float d = LoadHalf(block);
  const float dmin = LoadHalf(block + 2);
  uint8_t scale[8], minimum[8];
  UnpackScales(block + 4, scale, minimum);
  const bool five = format == QuantFormat::kQ5_K;
  for (int sub = 0; sub < 8; ++sub) {
    const int64_t b = super * 8 + sub;
    const uint8_t* q = block + (five ? 48 : 16) + sub / 2 * 32;
    const int shift = sub % 2 * 4;
    uint8_t bytes[16];
    for (int t = 0; t < 16; ++t) {
      bytes[t] = static_cast<uint8_t>(((q[t] >> shift) & 15) | ((q[16 + t] >> shift) & 15) << 4);
    }
    w.Nibbles(b, lane, bytes);
    if (five) {
      uint32_t bits = 0;
      for (int i = 0; i < kQuantBlock; ++i) bits |= static_cast<uint32_t>((block[16 + i] >> sub) & 1) << i;
      w.FifthBits(b, lane, bits);
    }
    w.FloatD(b, lane, d * static_cast<float>(scale[sub]));
    w.FloatM(b, lane, -(dmin * static_cast<float>(minimum[sub])));
  }
}

// Q6_K: sixteen sub-blocks of 16 values; see DecodeQ6_K for the places of the bits.
void PackSix(const uint8_t* block, int64_t super, int32_t lane, PanelWriter& w) {
  const float d = LoadHalf(block + 208);
  for (int b = 0; b < 8; ++b) {
    uint8_t bytes[kQuantBlock];
    for (int half = 0; half < 2; ++half) {
      const int sub = 2 * b + half;
      const int k = sub % 8 / 2;
      const uint8_t* low = block + sub / 8 * 64 + k % 2 * 32 + half * 16;
      const uint8_t* high = block + 128 + sub / 8 * 32 + half * 16;
      for (int i = 0; i < 16; ++i) {
        bytes[half * 16 + i] = static_cast<uint8_t>(((low[i] >> (k / 2 * 4)) & 15) | ((high[i] >> (k * 2)) & 3) << 4);
      }
      const auto scale = static_cast<int8_t>(block[192 + sub]);
      w.FloatD(super * 16 + sub, lane, d * static_cast<float>(scale));
    }
    w.Bytes(super * 8 + b, lane, bytes, 0);
  }
}

}  // namespace

std::optional<QuantFormat> QuantFormatOf(WeightType type) {
  switch (type) {
    case WeightType::kQ4_0: return QuantFormat::kQ4_0;
    case WeightType::kQ4_1: return QuantFormat::kQ4_1;
    case WeightType::kQ5_0: return QuantFormat::kQ5_0;
    case WeightType::kQ5_1: return QuantFormat::kQ5_1;
    case WeightType::kQ8_0: return QuantFormat::kQ8_0;
    case WeightType::kQ4_K: return QuantFormat::kQ4_K;
    case WeightType::kQ5_K: return QuantFormat::kQ5_K;
    case WeightType::kQ6_K: return QuantFormat::kQ6_K;
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBF16:
    case WeightType::kF8E4M3:
    case WeightType::kQ2_K:
    case WeightType::kQ3_K: return std::nullopt;
  }
  return std::nullopt;
}

void PackPanels(QuantFormat format, const uint8_t* blocks, int64_t n, int32_t k, int64_t panel_begin, int64_t panel_end,
                uint8_t* out) {
  const QuantTraits t = ops::TraitsOf(format);
  const QuantPanelLayout layout = ops::PanelLayoutOf(format, k);
  const int64_t per_row = k / t.block_elements;
  for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
    PanelWriter w(out + panel * layout.panel_bytes, layout);
    const auto lanes = static_cast<int32_t>(std::min<int64_t>(kQuantPanel, n - panel * kQuantPanel));
    for (int64_t b = 0; b < per_row; ++b) {
      for (int32_t lane = 0; lane < lanes; ++lane) {
        const uint8_t* block = blocks + ((panel * kQuantPanel + lane) * per_row + b) * t.block_bytes;
        if (t.block_elements == kQuantBlock) {
          PackSmall(format, block, b, lane, w);
        } else if (format == QuantFormat::kQ6_K) {
          PackSix(block, b, lane, w);
        } else {
          PackMiddle(format, block, b, lane, w);
        }
      }
    }
  }
}

}  // namespace fastllm::runtime
