#include "runtime/models/base/packing.h"

#include <algorithm>
#include <utility>

#include "runtime/quant/pack.h"
#include "runtime/quant/pack_half.h"
#include "runtime/quant/quantize.h"

namespace fastllm::runtime {

static_assert(ops::kQuantPanel == ops::kHalfPanel, "parts of both kinds are packed by the same panels");

void DescribeStored(const std::vector<WeightType>& parts, Param* param) {
  if (param->cols.size == 0 || param->is_fp8) return;
  const auto k = static_cast<int32_t>(param->cols.size);
  std::vector<ops::QuantWeight> packed;
  std::vector<ops::HalfWeight> halves;
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto n = static_cast<int32_t>(param->parts[i].size);
    if (const auto format = QuantFormatOf(parts[i])) packed.push_back({nullptr, n, k, *format});
    if (const auto half = HalfTypeOf(parts[i])) halves.push_back({nullptr, n, k, *half});
  }
  if (packed.size() == parts.size()) param->packed = std::move(packed);
  if (halves.size() == parts.size()) param->halves = std::move(halves);
}

bool DescribeInt8(const std::vector<WeightType>& parts, Param* param) {
  const bool floats = std::all_of(parts.begin(), parts.end(), [](WeightType t) { return WeightBlockElements(t) == 1; });
  if (param->cols.size == 0 || param->cols.size % ops::kQuantBlock != 0 || param->is_fp8 || !floats) return false;
  for (const Slice& rows : param->parts) {
    param->packed.push_back(
        {nullptr, static_cast<int32_t>(rows.size), static_cast<int32_t>(param->cols.size), kInt8Format});
  }
  return true;
}

namespace {

// Of a tensor that has all of the matrix, or of one that is the share itself.
MatrixShare ShareIn(const TensorInfo& tensor, const Slice& rows, const Slice& cols) {
  if (tensor.shape[0] == rows.size && tensor.shape[1] == cols.size) return WholeOf(tensor);
  return {rows.begin, rows.size, cols.begin, cols.size};
}

}  // namespace

// The memory is the ParamSet's own; the weights see it as const.
void PackPart(const TensorInfo& tensor, const Param& param, int32_t part, int64_t panel_begin, int64_t panel_end) {
  const Slice &rows = param.parts[part], &cols = param.cols;
  if (param.is_half()) {
    auto* const to = const_cast<uint16_t*>(param.halves[part].data);
    return PackHalfPanels(tensor, ShareIn(tensor, rows, cols), panel_begin, panel_end, to);
  }
  auto* const to = const_cast<uint8_t*>(param.packed[part].data);
  const auto format = QuantFormatOf(tensor.type);
  if (!format) return QuantizePanels(tensor, ShareIn(tensor, rows, cols), panel_begin, panel_end, to);
  const int64_t row_bytes = cols.full / WeightBlockElements(tensor.type) * WeightBlockBytes(tensor.type);
  const uint8_t* const blocks = tensor.data + rows.begin * row_bytes +
                                cols.begin / WeightBlockElements(tensor.type) * WeightBlockBytes(tensor.type);
  PackPanels(*format, blocks, rows.size, static_cast<int32_t>(cols.size), panel_begin, panel_end, to, row_bytes);
}

}  // namespace fastllm::runtime
