#include "runtime/quant/pack_half.h"

#include <algorithm>
#include <cstring>

namespace fastllm::runtime {

namespace {

using ops::kHalfPanel;

// Panels of which kGroup values of a row lie side by side.
template <int kGroup>
void Pack(const TensorInfo& tensor, const MatrixShare& share, int64_t panel_begin, int64_t panel_end, uint16_t* out) {
  const int64_t k = share.cols;
  const int64_t stride = tensor.shape[1];
  const uint8_t* const data = tensor.data + (share.first_row * stride + share.first_col) * 2;
  const int64_t whole = k / kGroup;
  for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
    uint16_t* const to = out + panel * ops::HalfPanelValues(static_cast<int32_t>(k));
    const int64_t lanes = std::min<int64_t>(kHalfPanel, share.rows - panel * kHalfPanel);
    const uint8_t* const from = data + panel * kHalfPanel * stride * 2;
    // The panel in order, so that each of its lines is written once; 16 rows are read side by side.
    for (int64_t j = 0; j < whole; ++j) {
      for (int64_t lane = 0; lane < lanes; ++lane) {
        std::memcpy(to + (j * kHalfPanel + lane) * kGroup, from + (lane * stride + j * kGroup) * 2, 2 * kGroup);
      }
    }
    if (whole * kGroup == k) continue;
    for (int64_t lane = 0; lane < lanes; ++lane) {
      std::memcpy(to + (whole * kHalfPanel + lane) * kGroup, from + (lane * stride + whole * kGroup) * 2, 2);
    }
  }
}

}  // namespace

std::optional<ops::DType> HalfTypeOf(WeightType type) {
  if (type == WeightType::kBF16) return ops::DType::kBF16;
  if (type == WeightType::kF16) return ops::DType::kF16;
  return std::nullopt;
}

void PackHalfPanels(const TensorInfo& tensor, const MatrixShare& share, int64_t panel_begin, int64_t panel_end,
                    uint16_t* out) {
  if (tensor.type == WeightType::kBF16) return Pack<2>(tensor, share, panel_begin, panel_end, out);
  Pack<1>(tensor, share, panel_begin, panel_end, out);
}

}  // namespace fastllm::runtime
