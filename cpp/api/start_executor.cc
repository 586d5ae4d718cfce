#include "api/start_executor.h"

#include <algorithm>
#include <utility>

#include "api/device_facts.h"
#include "api/placement.h"
#include "runtime/executor/local_executor.h"

namespace fastllm::api {

Result<StartedExecutor> StartExecutor(const EngineConfig& config, runtime::ModelSource source,
                                      std::vector<std::shared_ptr<LogitsProcessor>> logits_processors,
                                      runtime::PhaseSeconds* phases) {
  ModelFacts facts;
  facts.max_position_embeddings = source.config.max_position_embeddings;
  DeviceFacts device;
  device.usable_cores = UsableCores();
  FASTLLM_ASSIGN_OR_RETURN(const auto placement, ChoosePlacement(config, source.config, &device));
  const bool on_cpu = placement.device == ops::Device::kCpu;
  if (!on_cpu && !logits_processors.empty()) {
    return Status::Unimplemented("logits processors of the host need the logits in host memory: device must be cpu");
  }
  const bool keep_quantized = on_cpu && config.model.cpu_precision != "float32";
  FASTLLM_RETURN_IF_ERROR(CheckQuantization(config.model, placement));
  const bool quantize_int8 = config.model.quantization == "int8";
  facts.has_quantized_weights = runtime::UsesQuantized(source, keep_quantized, quantize_int8);
  FASTLLM_ASSIGN_OR_RETURN(const ops::DType kv_dtype,
                           ChooseKvDType(config.cache.kv_cache_dtype, placement, facts.has_quantized_weights));
  facts.kv_bytes_per_block = runtime::KvBytesPerBlock(source.config, config.cache.block_size, kv_dtype);
  if (on_cpu) {
    device.available_bytes =
        std::max<int64_t>(0, AvailableMemoryBytes() - runtime::WeightBytes(source, keep_quantized, quantize_int8));
  }
  StartedExecutor out;
  ResolvedConfig& resolved = out.resolved;
  FASTLLM_ASSIGN_OR_RETURN(resolved, ResolveLimits(config, facts, device));
  runtime::RunnerOptions options;
  options.kv = resolved.kv;
  options.sched = resolved.sched;
  options.num_threads = resolved.num_threads;
  options.pin_threads = config.runtime.cpu_pin_threads;
  options.seed = config.model.seed;
  options.logits_processors = std::move(logits_processors);
  options.logprobs_mode = runtime::LogprobsModeOf(config.model.logprobs_mode);
  options.placement = placement;
  options.placement.attention_backend = runtime::AttentionBackendOf(config.runtime.attention_backend);
  options.kv_dtype = kv_dtype;
  FASTLLM_ASSIGN_OR_RETURN(options.linear, runtime::ChooseLinearMethod(config.model.quantization, source));
  options.keep_quantized = keep_quantized;
  options.quantize_int8 = quantize_int8;
  options.enforce_eager = config.runtime.enforce_eager;
  if (on_cpu) {
    FASTLLM_RETURN_IF_ERROR(ResolveKvBlocks(config, facts, device, &resolved));
    options.kv = resolved.kv;
  } else {
    options.size_kv = [&](const runtime::DeviceMemoryUse& use) -> Result<KvConfig> {
      FASTLLM_RETURN_IF_ERROR(MeasureDevice(config, use, &device, &resolved.values));
      FASTLLM_RETURN_IF_ERROR(ResolveKvBlocks(config, facts, device, &resolved));
      return resolved.kv;
    };
  }
  FASTLLM_ASSIGN_OR_RETURN(out.executor, runtime::MakeLocalExecutor(std::move(source), options, phases));
  return out;
}

}  // namespace fastllm::api
