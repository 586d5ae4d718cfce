#include "runtime/models/base/weight_map.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "ops/contract/fp8.h"
#include "ops/contract/random_fill.h"
#include "ops/table/device.h"
#include "runtime/models/base/packing.h"
#include "runtime/models/base/weight_writer.h"
#include "runtime/tensor/host_memory.h"
#include "runtime/weights/tensor_list.h"

namespace fastllm::runtime {
namespace {

constexpr int64_t kChunkElements = 1 << 18;  // work unit of the loading threads: 1 MiB of float32
constexpr int64_t kAlignment = 64;           // bytes, of every parameter

// Rows [begin, end) of one part of a parameter; panels of a packed one.
struct FillTask {
  const TensorInfo* tensor = nullptr;
  const Param* param = nullptr;
  int64_t part_row = 0;  // first row of the part inside the parameter
  int64_t begin = 0;
  int64_t end = 0;
  int32_t packed_part = -1;            // which packed part it is; -1: the parameter is not packed
  const TensorInfo* scales = nullptr;  // of a matrix that is stored in 8-bit floats
};

// What fills a part of a parameter.
struct CheckpointPart {
  const TensorInfo* tensor = nullptr;
  const TensorInfo* scales = nullptr;  // of one in 8-bit floats
};

// "layers.3.attn.qkv.weight" -> {"layers.{}.attn.qkv.weight", "3"}; no number: the name itself and "".
std::pair<std::string, std::string> SplitLayer(std::string_view name) {
  for (size_t i = 0; i < name.size(); ++i) {
    const size_t end = std::min(name.find('.', i), name.size());
    const std::string_view segment = name.substr(i, end - i);
    if (!segment.empty() && segment.find_first_not_of("0123456789") == std::string_view::npos) {
      return {std::string(name.substr(0, i)) + "{}" + std::string(name.substr(end)), std::string(segment)};
    }
    i = end;
  }
  return {std::string(name), ""};
}

bool MatchesGlob(std::string_view pattern, std::string_view name) {
  const size_t star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == name;
  const std::string_view head = pattern.substr(0, star), tail = pattern.substr(star + 1);
  return name.size() >= head.size() + tail.size() && name.starts_with(head) && name.ends_with(tail);
}

int64_t RoundUp(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

int64_t PaddedBytes(const Param& p, const Placement& placement) {
  if (p.is_fp8) return RoundUp(p.numel()) + RoundUp(p.rows() * static_cast<int64_t>(sizeof(float)));
  int64_t bytes = p.is_packed() || p.is_half() ? 0 : p.numel() * ops::DTypeSize(placement.dtype);
  for (const ops::QuantWeight& w : p.packed) bytes += ops::PackedBytes(w.format, w.n, w.k);
  for (const ops::HalfWeight& w : p.halves) bytes += ops::HalfBytes(w.n, w.k);
  return RoundUp(bytes);
}

// What keeps the memory of all parameters alive, and where it is.
struct Slab {
  std::shared_ptr<void> owner;
  char* data = nullptr;
};

// One mapping with huge pages.
Result<Slab> HostSlab(int64_t bytes) {
  FASTLLM_ASSIGN_OR_RETURN(HostMemory mapped, HostMemory::Map(static_cast<size_t>(bytes), /*huge_pages=*/true));
  auto memory = std::make_shared<HostMemory>(std::move(mapped));
  return Slab{memory, static_cast<char*>(memory->data())};
}

Result<Slab> DeviceSlab(int64_t bytes, const Placement& placement) {
  const ops::DeviceApi* device = ops::FindDevice(placement.device);
  FASTLLM_CHECK(device != nullptr, "weights for a device that is not there");
  const ops::DeviceMemoryInfo memory = device->memory();
  if (bytes > memory.free_bytes) {
    return Status::ResourceExhausted("the weights need " + std::to_string(bytes) + " bytes of device memory; " +
                                     std::to_string(memory.free_bytes) + " of " + std::to_string(memory.total_bytes) +
                                     " are free on " + device->name());
  }
  auto tensor = std::make_shared<at::Tensor>(at::empty({bytes}, placement.Options(at::kByte)));
  return Slab{tensor, static_cast<char*>(tensor->data_ptr())};
}

// One slab for all parameters; each tensor keeps it alive.
Status Allocate(const Placement& placement, ParamSet& params) {
  const bool host = placement.device == ops::Device::kCpu;
  const int64_t bytes = ParamBytes(params, placement);
  FASTLLM_ASSIGN_OR_RETURN(const Slab slab, host ? HostSlab(bytes) : DeviceSlab(bytes, placement));
  params.Keep(slab.owner);
  int64_t offset = 0;
  for (const auto& p : params.all()) {
    if (p->is_packed() || p->is_half()) {
      const auto* data = reinterpret_cast<const uint8_t*>(slab.data) + offset;
      for (ops::QuantWeight& w : p->packed) {
        w.data = data;
        data += ops::PackedBytes(w.format, w.n, w.k);
      }
      for (ops::HalfWeight& w : p->halves) {
        w.data = reinterpret_cast<const uint16_t*>(data);
        data += ops::HalfBytes(w.n, w.k);
      }
      offset += PaddedBytes(*p, placement);
      continue;
    }
    const auto view = [&](int64_t at, std::vector<int64_t> shape, ops::DType type) {
      return at::from_blob(slab.data + at, shape, [owner = slab.owner](void*) {}, placement.Options(type));
    };
    std::vector<int64_t> shape = {p->rows()};
    if (p->cols != 0) shape.push_back(p->cols);
    p->value = view(offset, shape, p->is_fp8 ? ops::DType::kF8E4M3 : placement.dtype);
    if (p->is_fp8) p->scale = view(offset + RoundUp(p->numel()), {p->rows()}, ops::DType::kF32);
    offset += PaddedBytes(*p, placement);
  }
  return Status::Ok();
}

void AddTasks(const CheckpointPart& part, const Param& param, int64_t part_row, int64_t rows,
              std::vector<FillTask>* tasks) {
  const int64_t step = std::max<int64_t>(1, kChunkElements / param.row_elements());
  for (int64_t r = 0; r < rows; r += step) {
    tasks->push_back({part.tensor, &param, part_row, r, std::min(rows, r + step), -1, part.scales});
  }
}

void AddPackedTasks(const TensorInfo* tensor, const Param& param, int32_t part, std::vector<FillTask>* tasks) {
  const int64_t step = std::max<int64_t>(1, kChunkElements / param.cols / ops::kQuantPanel);
  const int64_t panels = ops::NumPanels(param.part_rows[part]);
  for (int64_t p = 0; p < panels; p += step)
    tasks->push_back({tensor, &param, 0, p, std::min(panels, p + step), part, nullptr});
}

std::vector<WeightType> TypesOf(const std::vector<CheckpointPart>& parts) {
  std::vector<WeightType> types;
  for (const CheckpointPart& part : parts) types.push_back(part.tensor->type);
  return types;
}

// The rows of its tensor that a task reads.
std::pair<int64_t, int64_t> RowsOf(const FillTask& t) {
  if (t.packed_part < 0) return {t.begin, t.end};
  return {t.begin * ops::kQuantPanel, std::min(t.end * ops::kQuantPanel, t.tensor->shape[0])};
}

void RunTask(const FillTask& t, const WeightTarget& target, WeightWriter& writer) {
  if (t.packed_part >= 0) return PackPart(*t.tensor, *t.param, t.packed_part, t.begin, t.end);
  const int64_t row = t.part_row + t.begin, first = row * t.param->row_elements();
  auto* const to = static_cast<char*>(t.param->value.data_ptr());
  if (t.param->is_fp8) {
    return writer.WriteFp8(*t.tensor, t.scales, t.begin, t.end, reinterpret_cast<uint8_t*>(to) + first,
                           t.param->scale.data_ptr<float>() + row);
  }
  writer.Write(*t.tensor, t.begin, t.end, to + first * ops::DTypeSize(target.placement.dtype));
}

// Runs the tasks on a team of threads, each with its own writer; `source` may forget what was read.
void RunTasks(const std::vector<FillTask>& tasks, const WeightTarget& target, const TensorSource* source) {
  std::atomic<size_t> next{0};
  std::exception_ptr failure;
  std::mutex mutex;
  const auto work = [&] {
    try {
      WeightWriter writer(target.placement, target.context.stream);
      for (size_t i = next++; i < tasks.size(); i = next++) {
        RunTask(tasks[i], target, writer);
        const auto [row_begin, row_end] = RowsOf(tasks[i]);
        if (source != nullptr) source->Release(*tasks[i].tensor, row_begin, row_end);
      }
      writer.Finish();
    } catch (...) {
      const std::lock_guard lock(mutex);
      failure = std::current_exception();
      next = tasks.size();
    }
  };
  {
    std::vector<std::jthread> helpers;
    for (int32_t t = 1; t < target.context.num_threads; ++t) helpers.emplace_back(work);
    work();
  }
  if (failure) std::rethrow_exception(failure);
}

// The scales of a matrix in 8-bit floats: <name>_scale, one for each row or one for all.
Result<const TensorInfo*> FindScales(const TensorSource& source, const TensorInfo& tensor) {
  FASTLLM_ASSIGN_OR_RETURN(const TensorInfo* scales, source.Get(tensor.name + "_scale"));
  const bool floats =
      scales->type == WeightType::kF32 || scales->type == WeightType::kBF16 || scales->type == WeightType::kF16;
  const bool by_row = !scales->shape.empty() && scales->shape[0] == tensor.shape[0];
  if (floats && (scales->numel() == 1 || (by_row && scales->numel() == tensor.shape[0]))) return scales;
  return Status::InvalidArgument("tensor " + scales->name + " is " + WeightTypeName(scales->type) + " " +
                                 ShapeText(scales->shape) + "; must be floats, one for all or one for each of the " +
                                 std::to_string(tensor.shape[0]) + " rows of " + tensor.name);
}

Result<CheckpointPart> FindPart(const TensorSource& source, const Param& param, int32_t part, const std::string& name) {
  FASTLLM_ASSIGN_OR_RETURN(const TensorInfo* tensor, source.Get(name));
  std::vector<int64_t> expected = {param.part_rows[part]};
  if (param.cols != 0) expected.push_back(param.cols);
  if (tensor->shape != expected) {
    return Status::InvalidArgument("tensor " + name + " has shape " + ShapeText(tensor->shape) +
                                   "; the config asks for " + ShapeText(expected));
  }
  CheckpointPart found{tensor, nullptr};
  if (tensor->type != WeightType::kF8E4M3) return found;
  if (!param.is_fp8) {
    return Status::InvalidArgument("tensor " + name + " is F8_E4M3; that is read for linear layers of a model whose " +
                                   "quantization is fp8 or compressed-tensors");
  }
  FASTLLM_ASSIGN_OR_RETURN(found.scales, FindScales(source, *tensor));
  return found;
}

Status CheckAllUsed(const TensorSource& source, const WeightMap& map, const std::unordered_set<std::string>& used) {
  std::string first;
  int64_t count = 0;
  for (const TensorInfo& t : source.tensors()) {
    const bool ignored = std::any_of(map.ignored.begin(), map.ignored.end(),
                                     [&](std::string_view pattern) { return MatchesGlob(pattern, t.name); });
    // Scales of an 8-bit KV cache: read by those who have one.
    const bool of_cache = t.name.ends_with(".k_scale") || t.name.ends_with(".v_scale");
    if (ignored || of_cache || used.contains(t.name)) continue;
    if (count++ == 0) first = t.name;
  }
  if (count == 0) return Status::Ok();
  return Status::InvalidArgument("the checkpoint holds " + std::to_string(count) +
                                 " tensor(s) that the model does not use, the first is " + first);
}

std::vector<FillTask> MakeTasks(const ParamSet& params, const std::vector<std::vector<CheckpointPart>>& parts) {
  std::vector<FillTask> tasks;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Param& param = *params.all()[i];
    int64_t row = 0;
    for (size_t part = 0; part < parts[i].size(); ++part) {
      if (param.is_packed() || param.is_half()) {
        AddPackedTasks(parts[i][part].tensor, param, static_cast<int32_t>(part), &tasks);
      } else {
        AddTasks(parts[i][part], param, row, param.part_rows[part], &tasks);
        row += param.part_rows[part];
      }
    }
  }
  return tasks;
}

// Quantises a matrix from float32 values.
void PackDrawn(const std::vector<float>& values, const WeightTarget& target, const Param& param) {
  std::vector<TensorInfo> parts;
  const auto* data = reinterpret_cast<const uint8_t*>(values.data());
  for (const int64_t rows : param.part_rows) {
    const auto bytes = static_cast<size_t>(rows * param.cols) * sizeof(float);
    parts.push_back({param.name, {rows, param.cols}, WeightType::kF32, data, bytes});
    data += bytes;
  }
  std::vector<FillTask> tasks;
  for (size_t i = 0; i < parts.size(); ++i) AddPackedTasks(&parts[i], param, static_cast<int32_t>(i), &tasks);
  RunTasks(tasks, target, nullptr);
}

// SplitMix64's output function (Steele, Lea, Flood 2014): a well mixed hash of a counter.
uint64_t Mix(uint64_t z) {
  z += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
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
              static_cast<int32_t>(p.cols)},
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

std::string WeightName(const WeightMap& map, std::string_view param, int32_t part, bool gguf) {
  const auto [pattern, layer] = SplitLayer(param);
  for (const WeightRule& rule : map.rules) {
    if (rule.param != pattern || rule.part != part) continue;
    std::string name(gguf ? rule.gguf : rule.hf);
    if (const size_t at = name.find("{}"); at != std::string::npos) name.replace(at, 2, layer);
    return name;
  }
  return "";
}

Status LoadWeights(const TensorSource& source, const WeightMap& map, bool gguf_names, const WeightTarget& target,
                   ParamSet& params) {
  std::unordered_set<std::string> used;
  std::vector<std::vector<CheckpointPart>> parts;  // of each parameter
  bool quantized = false;
  for (const auto& param : params.all()) {
    auto& of_param = parts.emplace_back();
    for (int32_t part = 0; part < static_cast<int32_t>(param->part_rows.size()); ++part) {
      const std::string name = WeightName(map, param->name, part, gguf_names);
      FASTLLM_CHECK(!name.empty(),
                    "the weight map has no rule for part " + std::to_string(part) + " of " + param->name);
      FASTLLM_ASSIGN_OR_RETURN(const CheckpointPart found, FindPart(source, *param, part, name));
      used.insert(name);
      if (found.scales != nullptr) used.insert(found.scales->name);
      of_param.push_back(found);
    }
    if (target.quantize_int8 && DescribeInt8(TypesOf(of_param), param.get())) {
      quantized = true;
    } else if (target.keep_quantized) {
      DescribeStored(TypesOf(of_param), param.get());
    }
  }
  if (target.quantize_int8 && !quantized) {
    return Status::InvalidArgument(
        "quantization is \"int8\", but the checkpoint holds no matrix of floats whose rows are multiples of " +
        std::to_string(ops::kQuantBlock));
  }
  FASTLLM_RETURN_IF_ERROR(CheckAllUsed(source, map, used));
  FASTLLM_RETURN_IF_ERROR(Allocate(target.placement, params));
  RunTasks(MakeTasks(params, parts), target, &source);
  return Status::Ok();
}

Status FillDummyWeights(uint64_t seed, const WeightTarget& target, ParamSet& params) {
  FASTLLM_ASSIGN_OR_RETURN(const auto fill,
                           target.ops->Resolve<ops::RandomFillFn>(
                               {ops::OpId::kRandomFill, target.placement.device, target.placement.dtype}));
  if (target.quantize_int8) {
    for (const auto& p : params.all())
      DescribeInt8(std::vector<WeightType>(p->part_rows.size(), WeightType::kF32), p.get());
  }
  FASTLLM_RETURN_IF_ERROR(Allocate(target.placement, params));
  std::vector<float> drawn;  // of a matrix that becomes 8-bit blocks
  FloatsForFp8 floats(params, target);
  for (const auto& p : params.all()) {
    if (p->is_packed()) drawn.resize(static_cast<size_t>(p->numel()));
    ops::RandomFillParams r;
    r.out = p->is_fp8 ? floats.memory() : p->is_packed() ? drawn.data() : p->value.data_ptr();
    r.key = Mix(seed ^ std::hash<std::string>{}(p->name));
    r.count = p->numel();
    r.mean = p->init == ParamInit::kNorm ? 1.0f : 0.0f;
    // A uniform variable on [-1, 1) has the standard deviation 1 / sqrt(3).
    r.scale = 0.02f * 1.7320508f;
    fill(r, target.context);
    if (p->is_packed()) PackDrawn(drawn, target, *p);
    if (p->is_fp8) FASTLLM_RETURN_IF_ERROR(floats.Quantize(*p));
  }
  floats.Finish();
  return Status::Ok();
}

int64_t ParamBytes(const ParamSet& params, const Placement& placement) {
  int64_t bytes = 0;
  for (const auto& p : params.all()) bytes += PaddedBytes(*p, placement);
  return bytes;
}

}  // namespace fastllm::runtime
