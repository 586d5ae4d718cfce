#include "runtime/quant/quantize.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "runtime/quant/pack.h"

namespace fastllm::runtime {
namespace {

constexpr int64_t kBlock = 32;
constexpr int64_t kBlockBytes = 34;
constexpr float kLargestHalf = 65504.0f;

// To nearest even, for numbers in [0, kLargestHalf].
uint16_t HalfOf(float f) {
  const auto bits = std::bit_cast<uint32_t>(f);
  if (bits < 0x38800000u) {  // below 2^-14: in units of 2^-24, the sum rounds to them
    return static_cast<uint16_t>(std::bit_cast<uint32_t>(f + 0.5f) - 0x3F000000u);
  }
  return static_cast<uint16_t>((bits + 0xFFFu + (bits >> 13 & 1u) - (112u << 23)) >> 13);
}

}  // namespace

void QuantizeQ8_0(const float* values, int64_t k, uint8_t* blocks) {
  for (int64_t b = 0; b < k / kBlock; ++b, values += kBlock, blocks += kBlockBytes) {
    float amax = 0.0f;
    for (int64_t i = 0; i < kBlock; ++i) {
      const float magnitude = std::fabs(values[i]);
      if (!(magnitude <= amax)) amax = magnitude;  // a NaN stays
      if (std::isnan(amax)) break;
    }
    const float d = amax / 127.0f;
    const bool good = d <= kLargestHalf;
    const uint16_t half = good ? HalfOf(d) : uint16_t{0x7E00};  // a NaN
    std::memcpy(blocks, &half, sizeof(half));
    const float inverse = d > 0.0f ? 1.0f / d : 0.0f;
    for (int64_t i = 0; i < kBlock; ++i) {
      const float q = good ? std::clamp(std::round(values[i] * inverse), -127.0f, 127.0f) : 1.0f;
      blocks[2 + i] = static_cast<uint8_t>(static_cast<int8_t>(q));
    }
  }
}

void QuantizePanels(const TensorInfo& tensor, const MatrixShare& share, int64_t panel_begin, int64_t panel_end,
                    uint8_t* out) {
  const int64_t k = share.cols;
  const int64_t panel_bytes = ops::PanelLayoutOf(kInt8Format, static_cast<int32_t>(k)).panel_bytes;
  std::vector<float> values(static_cast<size_t>(ops::kQuantPanel * k));
  std::vector<uint8_t> blocks(static_cast<size_t>(ops::kQuantPanel * (k / kBlock) * kBlockBytes));
  for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
    const int64_t row = panel * ops::kQuantPanel;
    const int64_t rows = std::min<int64_t>(ops::kQuantPanel, share.rows - row);
    const int64_t first = share.first_row + row;
    DequantizeColumns(tensor, first, first + rows, share.first_col, share.first_col + k, values.data());
    QuantizeQ8_0(values.data(), rows * k, blocks.data());
    PackPanels(kInt8Format, blocks.data(), rows, static_cast<int32_t>(k), 0, 1, out + panel * panel_bytes);
  }
}

}  // namespace fastllm::runtime
