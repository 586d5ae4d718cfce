// Which device and data type an engine takes, and the memory that its KV cache may have there.
#pragma once

#include <string>

#include "core/config/resolve.h"
#include "fastllm/config.h"
#include "fastllm/status.h"
#include "runtime/models/model_config.h"
#include "runtime/runner/device_memory.h"
#include "runtime/runner/runner_options.h"

namespace fastllm::api {

// The user's device and dtype, or the defaults: a GPU where this build and machine have one; float32 on the CPU, the
// checkpoint's own 16-bit type or else bfloat16 on a GPU. kUnimplemented for what is not there, with the reason. Fills
// in the names and reasons of `facts`.
Result<runtime::Placement> ChoosePlacement(const EngineConfig& config, const runtime::ModelConfig& model,
                                           DeviceFacts* facts);

// The type of the KV cache: on a GPU that of the model or fp8, whatever else is refused by name; see runtime::KvDType
// for the CPU.
Result<ops::DType> ChooseKvDType(const std::string& kv_cache_dtype, const runtime::Placement& placement,
                                 bool quantized);

// kUnimplemented or kInvalidArgument when quantization int8 does not go with the device or with cpu_precision.
Status CheckQuantization(const ModelOptions& options, const runtime::Placement& placement);

// What is left for the KV cache: gpu_memory_utilization of the device less all that is taken, and, as
// available_bytes, all that is free. kResourceExhausted names every part when nothing is left. Each part is noted in
// `values`.
Status MeasureDevice(const EngineConfig& config, const runtime::DeviceMemoryUse& use, DeviceFacts* facts,
                     std::vector<ResolvedValue>* values);

}  // namespace fastllm::api
