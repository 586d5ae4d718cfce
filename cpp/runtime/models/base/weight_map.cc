#include "runtime/models/base/weight_map.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "runtime/quant/pack.h"
#include "runtime/tensor/host_memory.h"

namespace fastllm::runtime {
namespace {

constexpr int64_t kChunkElements = 1 << 18;  // work unit of the loading threads: 1 MiB of float32
constexpr int64_t kAlignment = 64;           // bytes, of every parameter

// Rows [begin, end) of one part of a parameter; panels of a packed one.
struct FillTask {
  const TensorInfo* tensor = nullptr;  // null: dummy weights
  const Param* param = nullptr;
  int64_t part_row = 0;  // first row of the part inside the parameter
  int64_t begin = 0;
  int64_t end = 0;
  uint8_t* packed = nullptr;  // where a packed part begins
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

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::string s = "[";
  for (size_t i = 0; i < shape.size(); ++i) s += (i ? ", " : "") + std::to_string(shape[i]);
  return s + "]";
}

// One huge-page mapping for all parameters; each tensor keeps it alive.
Status Allocate(ParamSet& params) {
  int64_t bytes = 0;
  const auto padded = [](const Param& p) {
    int64_t size = p.is_packed() ? 0 : p.numel() * 4;
    for (const ops::QuantWeight& w : p.packed) size += ops::PackedBytes(w.format, w.n, w.k);
    return (size + kAlignment - 1) / kAlignment * kAlignment;
  };
  for (const auto& p : params.all()) bytes += padded(*p);
  FASTLLM_ASSIGN_OR_RETURN(HostMemory mapped, HostMemory::Map(static_cast<size_t>(bytes), /*huge_pages=*/true));
  auto memory = std::make_shared<HostMemory>(std::move(mapped));
  params.Keep(memory);
  int64_t offset = 0;
  for (const auto& p : params.all()) {
    if (p->is_packed()) {
      const auto* data = static_cast<const uint8_t*>(memory->data()) + offset;
      for (ops::QuantWeight& w : p->packed) {
        w.data = data;
        data += ops::PackedBytes(w.format, w.n, w.k);
      }
      offset += padded(*p);
      continue;
    }
    std::vector<int64_t> shape = {p->rows()};
    if (p->cols != 0) shape.push_back(p->cols);
    p->value = at::from_blob(
        static_cast<char*>(memory->data()) + offset, shape, [memory](void*) {}, at::TensorOptions().dtype(at::kFloat));
    offset += padded(*p);
  }
  return Status::Ok();
}

void AddTasks(const TensorInfo* tensor, const Param& param, int64_t part_row, int64_t rows,
              std::vector<FillTask>* tasks) {
  const int64_t step = std::max<int64_t>(1, kChunkElements / param.row_elements());
  for (int64_t r = 0; r < rows; r += step) tasks->push_back({tensor, &param, part_row, r, std::min(rows, r + step)});
}

void AddPackedTasks(const TensorInfo* tensor, const Param& param, const ops::QuantWeight& w,
                    std::vector<FillTask>* tasks) {
  const int64_t step = std::max<int64_t>(1, kChunkElements / param.cols / ops::kQuantPanel);
  const int64_t panels = ops::NumPanels(w.n);
  for (int64_t p = 0; p < panels; p += step) {
    // The memory is the ParamSet's own; the blocks see it as const.
    tasks->push_back({tensor, &param, 0, p, std::min(panels, p + step), const_cast<uint8_t*>(w.data)});
  }
}

// Describes the parameter as packed when all its parts can be.
void TryPack(const std::vector<const TensorInfo*>& parts, Param* param) {
  if (param->cols == 0) return;
  std::vector<ops::QuantWeight> packed;
  for (const TensorInfo* part : parts) {
    const auto format = QuantFormatOf(part->type);
    if (!format) return;
    packed.push_back({nullptr, static_cast<int32_t>(part->shape[0]), static_cast<int32_t>(param->cols), *format});
  }
  param->packed = std::move(packed);
}

void RunTasks(const std::vector<FillTask>& tasks, int32_t num_threads,
              const std::function<void(const FillTask&)>& fill) {
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < tasks.size(); i = next++) fill(tasks[i]);
  };
  std::vector<std::jthread> helpers;
  for (int32_t t = 1; t < num_threads; ++t) helpers.emplace_back(work);
  work();
}

Result<const TensorInfo*> FindPart(const TensorSource& source, const Param& param, int32_t part,
                                   const std::string& name) {
  FASTLLM_ASSIGN_OR_RETURN(const TensorInfo* tensor, source.Get(name));
  std::vector<int64_t> expected = {param.part_rows[part]};
  if (param.cols != 0) expected.push_back(param.cols);
  if (tensor->shape != expected) {
    return Status::InvalidArgument("tensor " + name + " has shape " + ShapeText(tensor->shape) +
                                   "; the config asks for " + ShapeText(expected));
  }
  return tensor;
}

Status CheckAllUsed(const TensorSource& source, const WeightMap& map, const std::unordered_set<std::string>& used) {
  std::string first;
  int64_t count = 0;
  for (const TensorInfo& t : source.tensors()) {
    const bool ignored = std::any_of(map.ignored.begin(), map.ignored.end(),
                                     [&](std::string_view pattern) { return MatchesGlob(pattern, t.name); });
    if (ignored || used.contains(t.name)) continue;
    if (count++ == 0) first = t.name;
  }
  if (count == 0) return Status::Ok();
  return Status::InvalidArgument("the checkpoint holds " + std::to_string(count) +
                                 " tensor(s) that the model does not use, the first is " + first);
}

std::vector<FillTask> MakeTasks(const ParamSet& params, const std::vector<std::vector<const TensorInfo*>>& parts) {
  std::vector<FillTask> tasks;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Param& param = *params.all()[i];
    int64_t row = 0;
    for (size_t part = 0; part < parts[i].size(); ++part) {
      if (param.is_packed()) {
        AddPackedTasks(parts[i][part], param, param.packed[part], &tasks);
      } else {
        AddTasks(parts[i][part], param, row, param.part_rows[part], &tasks);
        row += param.part_rows[part];
      }
    }
  }
  return tasks;
}

// SplitMix64's output function (Steele, Lea, Flood 2014): a well mixed hash of a counter.
uint64_t Mix(uint64_t z) {
  z += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

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

Status LoadWeights(const TensorSource& source, const WeightMap& map, bool gguf_names, int32_t num_threads,
                   bool keep_quantized, ParamSet& params) {
  std::unordered_set<std::string> used;
  std::vector<std::vector<const TensorInfo*>> parts;  // of each parameter
  for (const auto& param : params.all()) {
    auto& of_param = parts.emplace_back();
    for (int32_t part = 0; part < static_cast<int32_t>(param->part_rows.size()); ++part) {
      const std::string name = WeightName(map, param->name, part, gguf_names);
      FASTLLM_CHECK(!name.empty(),
                    "the weight map has no rule for part " + std::to_string(part) + " of " + param->name);
      FASTLLM_ASSIGN_OR_RETURN(const TensorInfo* tensor, FindPart(source, *param, part, name));
      used.insert(name);
      of_param.push_back(tensor);
    }
    if (keep_quantized) TryPack(of_param, param.get());
  }
  FASTLLM_RETURN_IF_ERROR(CheckAllUsed(source, map, used));
  FASTLLM_RETURN_IF_ERROR(Allocate(params));
  const std::vector<FillTask> tasks = MakeTasks(params, parts);
  RunTasks(tasks, num_threads, [](const FillTask& t) {
    if (t.packed != nullptr) {
      const auto k = static_cast<int32_t>(t.param->cols);
      PackPanels(*QuantFormatOf(t.tensor->type), t.tensor->data, t.tensor->shape[0], k, t.begin, t.end, t.packed);
      return;
    }
    float* base = static_cast<float*>(t.param->value.data_ptr());
    DequantizeRows(*t.tensor, t.begin, t.end, base + (t.part_row + t.begin) * t.param->row_elements());
  });
  return Status::Ok();
}

Status FillDummyWeights(uint64_t seed, int32_t num_threads, ParamSet& params) {
  FASTLLM_RETURN_IF_ERROR(Allocate(params));
  std::vector<FillTask> tasks;
  for (const auto& param : params.all()) AddTasks(nullptr, *param, 0, param->rows(), &tasks);
  RunTasks(tasks, num_threads, [seed](const FillTask& t) {
    const Param& p = *t.param;
    const uint64_t key = Mix(seed ^ std::hash<std::string>{}(p.name));
    float* out = static_cast<float*>(p.value.data_ptr());
    const float mean = p.init == ParamInit::kNorm ? 1.0f : 0.0f;
    // A uniform variable on [-1, 1) has the standard deviation 1 / sqrt(3).
    const float scale = 0.02f * 1.7320508f;
    for (int64_t i = t.begin * p.row_elements(); i < t.end * p.row_elements(); ++i) {
      const uint64_t bits = Mix(key + static_cast<uint64_t>(i)) >> 40;  // 24 bits, exact in float
      out[i] = mean + scale * (static_cast<float>(bits) * 0x1p-23f - 1.0f);
    }
  });
  return Status::Ok();
}

}  // namespace fastllm::runtime
