#include "runtime/models/base/packing.h"

#include <algorithm>
#include <utility>

#include "runtime/quant/pack.h"
#include "runtime/quant/pack_half.h"
#include "runtime/quant/quantize.h"

namespace fastllm::runtime {

static_assert(ops::kQuantPanel == ops::kHalfPanel, "parts of both kinds are packed by the same panels");

void DescribeStored(const std::vector<WeightType>& parts, Param* param) {
  if (param->cols == 0 || param->is_fp8) return;
  const auto k = static_cast<int32_t>(param->cols);
  std::vector<ops::QuantWeight> packed;
  std::vector<ops::HalfWeight> halves;
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto n = static_cast<int32_t>(param->part_rows[i]);
    if (const auto format = QuantFormatOf(parts[i])) packed.push_back({nullptr, n, k, *format});
    if (const auto half = HalfTypeOf(parts[i])) halves.push_back({nullptr, n, k, *half});
  }
  if (packed.size() == parts.size()) param->packed = std::move(packed);
  if (halves.size() == parts.size()) param->halves = std::move(halves);
}

bool DescribeInt8(const std::vector<WeightType>& parts, Param* param) {
  const bool floats = std::all_of(parts.begin(), parts.end(), [](WeightType t) { return WeightBlockElements(t) == 1; });
  if (param->cols == 0 || param->cols % ops::kQuantBlock != 0 || param->is_fp8 || !floats) return false;
  for (const int64_t rows : param->part_rows) {
    param->packed.push_back({nullptr, static_cast<int32_t>(rows), static_cast<int32_t>(param->cols), kInt8Format});
  }
  return true;
}

// The memory is the ParamSet's own; the weights see it as const.
void PackPart(const TensorInfo& tensor, const Param& param, int32_t part, int64_t panel_begin, int64_t panel_end) {
  if (param.is_half()) {
    return PackHalfPanels(tensor, panel_begin, panel_end, const_cast<uint16_t*>(param.halves[part].data));
  }
  auto* const to = const_cast<uint8_t*>(param.packed[part].data);
  const auto format = QuantFormatOf(tensor.type);
  if (!format) return QuantizePanels(tensor, panel_begin, panel_end, to);
  PackPanels(*format, tensor.data, tensor.shape[0], static_cast<int32_t>(param.cols), panel_begin, panel_end, to);
}

}  // namespace fastllm::runtime
