#include "api/placement.h"

#include <algorithm>
#include <string>

#include "ops/table/device.h"

namespace fastllm::api {
namespace {

using ops::Device;
using ops::DType;
using runtime::Placement;

Result<Device> ChooseDevice(const std::string& wanted) {
  if (wanted == "cpu") return Device::kCpu;
  const bool there = ops::FindDevice(Device::kCuda) != nullptr;
  if (wanted == "auto") return there ? Device::kCuda : Device::kCpu;
  if (there) return Device::kCuda;
  return Status::Unimplemented(
      "device is \"cuda\", but this build has no CUDA arm or this machine no GPU that its driver shows");
}

Result<DType> DTypeOf(const std::string& name) {
  if (name == "float32") return DType::kF32;
  if (name == "float16") return DType::kF16;
  if (name == "bfloat16") return DType::kBF16;
  return Status::InvalidArgument("dtype is \"" + name + "\"; must be float32, float16 or bfloat16");
}

std::string Bytes(int64_t n) { return std::to_string(n); }

}  // namespace

Result<Placement> ChoosePlacement(const EngineConfig& config, const runtime::ModelConfig& model, DeviceFacts* facts) {
  Placement placement;
  FASTLLM_ASSIGN_OR_RETURN(placement.device, ChooseDevice(config.runtime.device));
  facts->device = placement.device == Device::kCpu ? "cpu" : "cuda";
  facts->dtype = config.model.dtype;
  if (facts->dtype == "auto") {
    facts->dtype_reason = "the default on " + facts->device;
    facts->dtype = placement.device == Device::kCpu ? "float32" : "bfloat16";
    if (placement.device != Device::kCpu && (model.dtype == "float16" || model.dtype == "bfloat16")) {
      facts->dtype = model.dtype;
      facts->dtype_reason = "the checkpoint's own type";
    }
  }
  FASTLLM_ASSIGN_OR_RETURN(placement.dtype, DTypeOf(facts->dtype));
  if (placement.device == Device::kCpu && placement.dtype != DType::kF32) {
    return Status::Unimplemented("dtype is \"" + facts->dtype + "\"; the CPU computes in float32, " + facts->dtype +
                                 " needs device cuda");
  }
  return placement;
}

Result<DType> ChooseKvDType(const std::string& kv_cache_dtype, const Placement& placement, bool quantized) {
  if (placement.device == Device::kCpu) return runtime::KvDType(kv_cache_dtype, quantized);
  if (kv_cache_dtype == "auto") return placement.dtype;
  if (kv_cache_dtype == "fp8" || kv_cache_dtype == "fp8_e4m3") return DType::kF8E4M3;
  if (kv_cache_dtype != "int8") {
    FASTLLM_ASSIGN_OR_RETURN(const DType wanted, DTypeOf(kv_cache_dtype));
    if (wanted == placement.dtype) return wanted;
  }
  return Status::Unimplemented("kv_cache_dtype is \"" + kv_cache_dtype +
                               "\"; on a GPU the KV cache has the data type of the model or fp8");
}

Status CheckQuantization(const ModelOptions& options, const Placement& placement) {
  if (options.quantization != "int8") return Status::Ok();
  if (placement.device != Device::kCpu) {
    return Status::Unimplemented("quantization is \"" + *options.quantization + "\", which needs device cpu");
  }
  if (options.cpu_precision != "float32") return Status::Ok();
  return Status::InvalidArgument("quantization is \"" + *options.quantization +
                                 "\" and cpu_precision \"float32\"; the second computes with unquantised weights");
}

Status MeasureDevice(const EngineConfig& config, const runtime::DeviceMemoryUse& use, DeviceFacts* facts,
                     std::vector<ResolvedValue>* values) {
  const auto note = [values](std::string name, int64_t value, std::string reason) {
    values->push_back({std::move(name), Bytes(value), std::move(reason)});
  };
  note("gpu_total_bytes", use.total_bytes, use.device);
  note("gpu_used_by_others_bytes", use.total_bytes - use.free_bytes_at_start, "in use before the engine began");
  note("weight_bytes", use.weight_bytes, "parameters, measured as allocated");
  note("activation_bytes", use.activation_bytes, "buffers of one step of max_num_batched_tokens, run once");
  note("staging_bytes", use.staging_bytes, "inputs of a step, block tables, attention workspace");
  note("gpu_other_bytes", use.other_bytes, "context, kernels, libraries and rope tables: what else the dry steps took");
  note("graph_reserve_bytes", use.graph_reserve_bytes, "set aside for captured graphs");
  note("tally_reserve_bytes", use.tally_reserve_bytes, "set aside for the token counts of requests with penalties");
  const double share = double{config.cache.gpu_memory_utilization};
  const auto allowed = static_cast<int64_t>(static_cast<double>(use.total_bytes) * share);
  const int64_t used = use.total_bytes - use.free_bytes + use.reserve_bytes();
  facts->available_bytes = std::max<int64_t>(1, use.free_bytes - use.reserve_bytes());
  facts->kv_budget_bytes = std::min(allowed - used, facts->available_bytes);
  facts->kv_budget_reason = "gpu_memory_utilization of " + Bytes(use.total_bytes) + " bytes (" + Bytes(allowed) +
                            ") less the " + Bytes(used) + " in use";
  if (facts->kv_budget_bytes > 0 || config.cache.kv_cache_memory_bytes || config.cache.num_gpu_blocks_override) {
    return Status::Ok();
  }
  return Status::ResourceExhausted(
      "no memory is left for the KV cache: gpu_memory_utilization allows " + Bytes(allowed) + " of the " +
      Bytes(use.total_bytes) + " bytes of " + use.device + ", in use are " + Bytes(used) + " (others " +
      Bytes(use.total_bytes - use.free_bytes_at_start) + ", weights " + Bytes(use.weight_bytes) + ", activations " +
      Bytes(use.activation_bytes) + ", staging " + Bytes(use.staging_bytes) + ", context and libraries " +
      Bytes(use.other_bytes) + ", graphs " + Bytes(use.graph_reserve_bytes) + ", counts of penalties " +
      Bytes(use.tally_reserve_bytes) + ")");
}

}  // namespace fastllm::api
