#include "runtime/models/base/weight_map.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <exception>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "runtime/models/base/packing.h"
#include "runtime/models/base/weight_memory.h"
#include "runtime/models/base/weight_writer.h"
#include "runtime/tensor/tensors.h"
#include "runtime/weights/tensor_list.h"

namespace fastllm::runtime {
namespace {

constexpr int64_t kChunkElements = 1 << 18;  // work unit of the loading threads: 1 MiB of float32

// Rows [begin, end) of one part of a parameter; panels of a packed one.
struct FillTask {
  const TensorInfo* tensor = nullptr;
  const Param* param = nullptr;
  const Slice* rows = nullptr;  // of the tensor, that the part holds
  int64_t part_row = 0;         // first row of the part inside the parameter
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

// Bytes of one row of a tensor as it is stored.
int64_t RowBytes(const TensorInfo& t) {
  return t.shape.empty() || t.shape[0] == 0 ? static_cast<int64_t>(t.nbytes)
                                            : static_cast<int64_t>(t.nbytes) / t.shape[0];
}

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

void AddTasks(const CheckpointPart& from, const Param& param, const Slice& part, int64_t part_row,
              std::vector<FillTask>* tasks) {
  const int64_t step = std::max<int64_t>(1, kChunkElements / param.row_elements());
  for (int64_t r = 0; r < part.size; r += step) {
    tasks->push_back({from.tensor, &param, &part, part_row, r, std::min(part.size, r + step), -1, from.scales});
  }
}

void AddPackedTasks(const TensorInfo* tensor, const Param& param, int32_t part, std::vector<FillTask>* tasks) {
  const int64_t step = std::max<int64_t>(1, kChunkElements / param.cols.size / ops::kQuantPanel);
  const Slice& rows = param.parts[part];
  const int64_t panels = ops::NumPanels(rows.size);
  for (int64_t p = 0; p < panels; p += step)
    tasks->push_back({tensor, &param, &rows, 0, p, std::min(panels, p + step), part, nullptr});
}

std::vector<WeightType> TypesOf(const std::vector<CheckpointPart>& parts) {
  std::vector<WeightType> types;
  for (const CheckpointPart& part : parts) types.push_back(part.tensor->type);
  return types;
}

// The rows of its tensor that a task reads.
std::pair<int64_t, int64_t> RowsOf(const FillTask& t) {
  const int64_t first = t.rows->begin;
  if (t.packed_part < 0) return {first + t.begin, first + t.end};
  return {first + t.begin * ops::kQuantPanel, first + std::min(t.end * ops::kQuantPanel, t.rows->size)};
}

void RunTask(const FillTask& t, const WeightTarget& target, WeightWriter& writer) {
  if (t.packed_part >= 0) return PackPart(*t.tensor, *t.param, t.packed_part, t.begin, t.end);
  const auto [begin, end] = RowsOf(t);
  const int64_t row = t.part_row + t.begin, first = row * t.param->row_elements();
  auto* const to = static_cast<char*>(t.param->value.data_ptr());
  if (t.param->is_fp8) {
    return writer.WriteFp8(*t.tensor, t.scales, begin, end, t.param->cols, reinterpret_cast<uint8_t*>(to) + first,
                           DataOf<float>(t.param->scale) + row);
  }
  writer.Write(*t.tensor, begin, end, t.param->cols, to + first * ops::DTypeSize(target.placement.dtype));
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

// Whether a tensor can be cut as the parameter is.
Status CheckCut(const TensorInfo& tensor, const Param& param, const Slice& rows, const WeightRule& rule) {
  FASTLLM_CHECK(
      (rows.whole() || rule.shard == ShardAxis::kRows) && (param.cols.whole() || rule.shard == ShardAxis::kCols),
      "the weight map does not say that " + param.name + " may be cut in this way");
  const int64_t block = WeightBlockElements(tensor.type);
  if (param.cols.begin % block == 0 && param.cols.size % block == 0) return Status::Ok();
  return Status::InvalidArgument("tensor " + tensor.name + ": a rank's share of " + std::to_string(param.cols.size) +
                                 " of the " + std::to_string(param.cols.full) + " columns is not whole blocks of " +
                                 std::to_string(block) + " (" + WeightTypeName(tensor.type) + ")");
}

// What fills a part, of which the parameter may hold a share.
Result<CheckpointPart> FindPart(const TensorSource& source, const Param& param, int32_t part, const WeightRule& rule,
                                const std::string& name) {
  const Slice& rows = param.parts[part];
  FASTLLM_ASSIGN_OR_RETURN(const TensorInfo* tensor, source.Get(name));
  std::vector<int64_t> expected = {rows.full};
  if (param.cols.size != 0) expected.push_back(param.cols.full);
  if (tensor->shape != expected) {
    return Status::InvalidArgument("tensor " + name + " has shape " + ShapeText(tensor->shape) +
                                   "; the config asks for " + ShapeText(expected));
  }
  FASTLLM_RETURN_IF_ERROR(CheckCut(*tensor, param, rows, rule));
  CheckpointPart found{tensor, nullptr};
  if (tensor->type != WeightType::kF8E4M3) return found;
  if (!param.is_fp8) {
    return Status::InvalidArgument("tensor " + name + " is F8_E4M3; that is read for linear layers of a model whose " +
                                   "quantization is fp8 or compressed-tensors");
  }
  FASTLLM_ASSIGN_OR_RETURN(found.scales, FindScales(source, *tensor));
  return found;
}

// The layer in a checkpoint name that `pattern` describes ("{}" stands for it); -1: a name without layers; nullopt: not
// described.
std::optional<int64_t> LayerIn(std::string_view pattern, std::string_view name) {
  const size_t at = pattern.find("{}");
  if (at == std::string_view::npos) return pattern == name ? std::optional<int64_t>(-1) : std::nullopt;
  const std::string_view head = pattern.substr(0, at), tail = pattern.substr(at + 2);
  if (name.size() <= head.size() + tail.size() || !name.starts_with(head) || !name.ends_with(tail)) return std::nullopt;
  const std::string_view digits = name.substr(head.size(), name.size() - head.size() - tail.size());
  int64_t layer = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), layer);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return layer;
}

// Whether a tensor is for layers that are not built here, or for what comes before or after all layers.
bool IsOfOtherStage(const WeightMap& map, bool gguf_names, const LayerSpan& layers, std::string_view name) {
  if (name.ends_with("_scale")) name.remove_suffix(6);  // of a matrix in 8-bit floats
  return std::any_of(map.rules.begin(), map.rules.end(), [&](const WeightRule& rule) {
    const auto layer = LayerIn(gguf_names ? rule.gguf : rule.hf, name);
    if (!layer) return false;
    return *layer < 0 ? !layers.begins() || !layers.ends()
                      : *layer < layers.total && (*layer < layers.first || *layer >= layers.last);
  });
}

Status CheckAllUsed(const TensorSource& source, const WeightMap& map, bool gguf_names, const LayerSpan& layers,
                    const std::unordered_set<std::string>& used) {
  std::string first;
  int64_t count = 0;
  for (const TensorInfo& t : source.tensors()) {
    const bool ignored = std::any_of(map.ignored.begin(), map.ignored.end(),
                                     [&](std::string_view pattern) { return MatchesGlob(pattern, t.name); });
    // Scales of an 8-bit KV cache: read by those who have one.
    const bool of_cache = t.name.ends_with(".k_scale") || t.name.ends_with(".v_scale");
    if (ignored || of_cache || used.contains(t.name) || IsOfOtherStage(map, gguf_names, layers, t.name)) continue;
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
      const Slice& slice = param.parts[part];
      if (param.is_packed() || param.is_half()) {
        AddPackedTasks(parts[i][part].tensor, param, static_cast<int32_t>(part), &tasks);
      } else {
        AddTasks(parts[i][part], param, slice, row, &tasks);
        row += slice.size;
      }
    }
  }
  return tasks;
}

// Bytes of a checkpoint tensor that a rank reads for a part.
int64_t BytesRead(const TensorInfo& tensor, const Param& param, const Slice& part) {
  const int64_t block = WeightBlockElements(tensor.type);
  const int64_t row = param.cols.size == 0 ? RowBytes(tensor) : param.cols.size / block * WeightBlockBytes(tensor.type);
  return part.size * row;
}

const WeightRule* FindRule(const WeightMap& map, std::string_view pattern, int32_t part) {
  for (const WeightRule& rule : map.rules) {
    if (rule.param == pattern && rule.part == part) return &rule;
  }
  return nullptr;
}

std::string NameIn(const WeightRule& rule, bool gguf, const std::string& layer) {
  std::string name(gguf ? rule.gguf : rule.hf);
  if (const size_t at = name.find("{}"); at != std::string::npos) name.replace(at, 2, layer);
  return name;
}

}  // namespace

std::string WeightName(const WeightMap& map, std::string_view param, int32_t part, bool gguf) {
  const auto [pattern, layer] = SplitLayer(param);
  const WeightRule* rule = FindRule(map, pattern, part);
  return rule == nullptr ? "" : NameIn(*rule, gguf, layer);
}

Status LoadWeights(const TensorSource& source, const WeightMap& map, bool gguf_names, const WeightTarget& target,
                   ParamSet& params) {
  std::unordered_set<std::string> used;
  std::vector<std::vector<CheckpointPart>> parts;  // of each parameter
  int64_t bytes_read = 0;
  bool quantized = false;
  for (const auto& param : params.all()) {
    const auto [pattern, layer] = SplitLayer(param->name);
    auto& of_param = parts.emplace_back();
    FASTLLM_RETURN_IF_ERROR(CheckShare(*param, target.quantize_int8));
    for (int32_t part = 0; part < static_cast<int32_t>(param->parts.size()); ++part) {
      const WeightRule* rule = FindRule(map, pattern, part);
      FASTLLM_CHECK(rule != nullptr && !NameIn(*rule, gguf_names, layer).empty(),
                    "the weight map has no rule for part " + std::to_string(part) + " of " + param->name);
      const std::string name = NameIn(*rule, gguf_names, layer);
      FASTLLM_ASSIGN_OR_RETURN(const CheckpointPart found, FindPart(source, *param, part, *rule, name));
      bytes_read += BytesRead(*found.tensor, *param, param->parts[part]);
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
  FASTLLM_RETURN_IF_ERROR(CheckAllUsed(source, map, gguf_names, target.layers, used));
  FASTLLM_RETURN_IF_ERROR(AllocateWeights(target.placement, params));
  RunTasks(MakeTasks(params, parts), target, &source);
  if (target.bytes_read != nullptr) *target.bytes_read = bytes_read;
  return Status::Ok();
}

}  // namespace fastllm::runtime
