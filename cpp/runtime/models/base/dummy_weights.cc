#include <algorithm>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "ops/contract/fp8.h"
#include "ops/contract/random_fill.h"
#include "ops/table/device.h"
#include "runtime/models/base/packing.h"
#include "runtime/models/base/weight_map.h"
#include "runtime/models/base/weight_memory.h"
#include "runtime/tensor/tensors.h"

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

// Quantises a matrix from float32 values, its panels spread over threads.
void PackDrawn(const std::vector<float>& values, int32_t num_threads, const Param& param) {
  const float* data = values.data();
  for (size_t part = 0; part < param.parts.size(); ++part) {
    const int64_t rows = param.parts[part].size, panels = ops::NumPanels(rows);
    const TensorInfo tensor{param.name,
                            {rows, param.cols.size},
                            WeightType::kF32,
                            reinterpret_cast<const uint8_t*>(data),
                            static_cast<size_t>(rows * param.cols.size) * sizeof(float)};
    data += rows * param.cols.size;
    std::vector<std::jthread> team;
    for (int64_t t = 0; t < num_threads; ++t) {
      team.emplace_back([&, t] {
        PackPart(tensor, param, static_cast<int32_t>(part), panels * t / num_threads, panels * (t + 1) / num_threads);
      });
    }
  }
}

// Room for the floats of one matrix at a time, where the weights are, and what makes 8-bit ones of them.
class FloatsForFp8 {
 public:
  FloatsForFp8(const ParamSet& params, const WeightTarget& target) : target_(target) {
    int64_t most = 0;
    for (const auto& p : params.all()) most = std::max(most, p->is_fp8 ? p->numel() : 0);
    if (most > 0) memory_ = Empty({most}, target.placement.Options(target.placement.dtype));
  }
  void* memory() const { return memory_.data_ptr(); }
  Status Quantize(const Param& p) const {
    FASTLLM_ASSIGN_OR_RETURN(const auto quantize,
                             target_.ops->Resolve<ops::QuantizeFp8Fn>(
                                 {ops::OpId::kQuantizeFp8, target_.placement.device, target_.placement.dtype}));
    quantize({{static_cast<uint8_t*>(p.value.data_ptr()), DataOf<float>(p.scale)},
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
  for (const auto& p : params.all()) {
    FASTLLM_RETURN_IF_ERROR(CheckShare(*p, target.quantize_int8));
    if (target.quantize_int8) DescribeInt8(std::vector<WeightType>(p->parts.size(), WeightType::kF32), p.get());
  }
  FASTLLM_RETURN_IF_ERROR(AllocateWeights(target.placement, params));
  std::vector<float> drawn;  // of a matrix that becomes 8-bit blocks
  const FloatsForFp8 floats(params, target);
  const int64_t element_bytes = ops::DTypeSize(target.placement.dtype);
  for (const auto& p : params.all()) {
    if (p->is_packed()) drawn.resize(static_cast<size_t>(p->numel()));
    ops::RandomFillParams r;
    r.out = p->is_fp8 ? floats.memory() : p->is_packed() ? drawn.data() : p->value.data_ptr();
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
    if (p->is_packed()) PackDrawn(drawn, target.context.num_threads, *p);
    if (p->is_fp8) FASTLLM_RETURN_IF_ERROR(floats.Quantize(*p));
  }
  floats.Finish();
  return Status::Ok();
}

}  // namespace fastllm::runtime
