#include "api/start_executor.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "api/device_facts.h"
#include "api/placement.h"
#include "runtime/comm/topology.h"
#include "runtime/executor/local_executor.h"
#include "runtime/executor/threads_executor.h"
#include "runtime/runner/model_share.h"

namespace fastllm::api {
namespace {

// What this build cannot do about ranks, by name.
Status CheckRanks(const EngineConfig& config, const runtime::ParallelSizes& sizes, bool on_cpu) {
  const std::string& backend = config.parallel.distributed_executor_backend;
  if (backend != "threads") {
    return Status::Unimplemented("distributed_executor_backend is \"" + backend +
                                 "\"; this build runs ranks as threads of its process");
  }
  if (config.runtime.cpu_pin_threads && sizes.world() > 1) {
    return Status::Unimplemented("cpu_pin_threads needs one rank; tensor_parallel_size is " +
                                 std::to_string(sizes.tensor) + " and pipeline_parallel_size " +
                                 std::to_string(sizes.pipeline));
  }
  if (on_cpu || sizes.world() == 1) return Status::Ok();
  return Status::Unimplemented("tensor_parallel_size is " + std::to_string(sizes.tensor) +
                               " and pipeline_parallel_size " + std::to_string(sizes.pipeline) +
                               "; on device cuda this build has one rank");
}

Result<std::unique_ptr<Executor>> MakeExecutor(const EngineConfig& config, runtime::ModelSource source,
                                               const runtime::RunnerOptions& options,
                                               const runtime::ParallelSizes& sizes, runtime::PhaseSeconds* phases) {
  if (sizes.world() == 1) return runtime::MakeLocalExecutor(std::move(source), options, phases);
  runtime::RankThreadsOptions threads;
  threads.sizes = sizes;
  threads.timeout = std::chrono::seconds(config.parallel.distributed_timeout_seconds);
  return runtime::MakeThreadsExecutor(std::move(source), options, threads, phases);
}

}  // namespace

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
  const runtime::ParallelSizes sizes{config.parallel.tensor_parallel_size, config.parallel.pipeline_parallel_size};
  FASTLLM_RETURN_IF_ERROR(CheckRanks(config, sizes, on_cpu));
  FASTLLM_ASSIGN_OR_RETURN(const runtime::KvBlockBytes block,
                           runtime::KvBlockBytesOf(source.config, sizes, config.cache.block_size, kv_dtype));
  // Ranks on the CPU share its memory.
  facts.kv_bytes_per_block = on_cpu ? block.all : block.most;
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
  FASTLLM_ASSIGN_OR_RETURN(out.executor, MakeExecutor(config, std::move(source), options, sizes, phases));
  return out;
}

}  // namespace fastllm::api
