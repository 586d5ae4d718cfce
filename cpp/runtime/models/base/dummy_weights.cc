#include <ATen/ops/empty.h>

#include <algorithm>
#include <functional>
#include <string>

#include "ops/contract/fp8.h"
#include "ops/contract/random_fill.h"
#include "ops/table/device.h"
#include "runtime/models/base/weight_map.h"
#include "runtime/models/base/weight_memory.h"

namespace fastllm::runtime {
namespace {

// SplitMix64's output function (Steele, Lea, Flood 2014): a well mixed hash of a counter.
uint64_t Mix(uint64_t z) {
  z += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

// Draws a part of the parameter, whose first element in the whole model's is `first`, to where `out` points.
void DrawPart(const Param& param, const Slice& rows, int64_t first, ops::RandomFillParams r, int64_t element_bytes,
              const std::function<void(const ops::RandomFillParams&)>& fill) {
  const int64_t width = param.cols.size == 0 ? 1 : param.cols.size;
  const int64_t full_width = param.cols.size == 0 ? 1 : param.cols.full;
  const bool whole_rows = width == full_width;
  const int64_t at_once = whole_rows ? rows.size : 1;
  r.count = at_once * width;
  for (int64_t row = 0; row < rows.size; row += at_once) {
    r.first = first + (rows.begin + row) * full_width + param.cols.begin;
    if (r.count > 0) fill(r);
    r.out = static_cast<char*>(r.out) + r.count * element_bytes;
  }
}

// Room for the floats of one matrix at a time, where the weights are, and what makes 8-bit ones of them.
class FloatsForFp8 {
 public:
  FloatsForFp8(const ParamSet& params, const WeightTarget& target) : target_(target) {
    int64_t most = 0;
    for (const auto& p : params.all()) most = std::max(most, p->is_fp8 ? p->numel() : 0);
    if (most > 0) memory_ = at::empty({most}, target.placement.Options(target.placement.dtype));
  }
  void* memory() const { return memory_.data_ptr(); }
  Status Quantize(const Param& p) const {
    FASTLLM_ASSIGN_OR_RETURN(const auto quantize,
                             target_.ops->Resolve<ops::QuantizeFp8Fn>(
                                 {ops::OpId::kQuantizeFp8, target_.placement.device, target_.placement.dtype}));
    quantize({{static_cast<uint8_t*>(p.value.data_ptr()), p.scale.data_ptr<float>()},
              memory_.data_ptr(),
              static_cast<int32_t>(p.rows()),
              static_cast<int32_t>(p.cols.size)},
             target_.context);
    return Status::Ok();
  }
  // Before the room is given back.
  void Finish() const {
    if (memory_.defined()) ops::FindDevice(target_.placement.device)->Synchronize(target_.context.stream);
  }

 private:
  const WeightTarget& target_;
  at::Tensor memory_;
};

}  // namespace

Status FillDummyWeights(uint64_t seed, const WeightTarget& target, ParamSet& params) {
  FASTLLM_ASSIGN_OR_RETURN(const auto fill,
                           target.ops->Resolve<ops::RandomFillFn>(
                               {ops::OpId::kRandomFill, target.placement.device, target.placement.dtype}));
  FASTLLM_RETURN_IF_ERROR(AllocateWeights(target.placement, params));
  const FloatsForFp8 floats(params, target);
  const int64_t element_bytes = ops::DTypeSize(target.placement.dtype);
  for (const auto& p : params.all()) {
    FASTLLM_RETURN_IF_ERROR(CheckWhole(*p));
    ops::RandomFillParams r;
    r.out = p->is_fp8 ? floats.memory() : p->value.data_ptr();
    r.key = Mix(seed ^ std::hash<std::string>{}(p->name));
    r.mean = p->init == ParamInit::kNorm ? 1.0f : 0.0f;
    // A uniform variable on [-1, 1) has the standard deviation 1 / sqrt(3).
    r.scale = 0.02f * 1.7320508f;
    int64_t first = 0;
    for (const Slice& part : p->parts) {
      DrawPart(*p, part, first, r, element_bytes,
               [&](const ops::RandomFillParams& piece) { fill(piece, target.context); });
      r.out = static_cast<char*>(r.out) + part.size * p->row_elements() * element_bytes;
      first += part.full * (p->cols.size == 0 ? 1 : p->cols.full);
    }
    if (p->is_fp8) FASTLLM_RETURN_IF_ERROR(floats.Quantize(*p));
  }
  floats.Finish();
  return Status::Ok();
}

}  // namespace fastllm::runtime
