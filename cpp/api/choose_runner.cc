#include "api/choose_runner.h"

#include <algorithm>
#include <utility>

#include "api/device_facts.h"
#include "api/placement.h"
#include "runtime/runner/model_share.h"

namespace fastllm::api {

int64_t CpuWeightBytes(const EngineConfig& config, const runtime::ModelSource& source) {
  return runtime::WeightBytes(source, config.model.cpu_precision != "float32", config.model.quantization == "int8");
}

Result<RunnerChoice> ChooseRunner(const EngineConfig& config, const runtime::ModelSource& source,
                                  int64_t available_bytes) {
  RunnerChoice out;
  out.facts.max_position_embeddings = source.config.max_position_embeddings;
  out.device.usable_cores = UsableCores();
  runtime::RunnerOptions& options = out.options;
  FASTLLM_ASSIGN_OR_RETURN(options.placement, ChoosePlacement(config, source.config, &out.device));
  const bool on_cpu = options.placement.device == ops::Device::kCpu;
  options.keep_quantized = on_cpu && config.model.cpu_precision != "float32";
  FASTLLM_RETURN_IF_ERROR(CheckQuantization(config.model, options.placement));
  if (config.model.batch_invariant.value_or(false) && !on_cpu) {
    return Status::Unimplemented("batch_invariant is true, but on a GPU kernels are chosen by the size of the batch");
  }
  options.quantize_int8 = config.model.quantization == "int8";
  out.facts.has_quantized_weights = runtime::UsesQuantized(source, options.keep_quantized, options.quantize_int8);
  FASTLLM_ASSIGN_OR_RETURN(
      options.kv_dtype, ChooseKvDType(config.cache.kv_cache_dtype, options.placement, out.facts.has_quantized_weights));
  out.sizes = {config.parallel.tensor_parallel_size, config.parallel.pipeline_parallel_size};
  FASTLLM_ASSIGN_OR_RETURN(
      const runtime::KvBlockBytes block,
      runtime::KvBlockBytesOf(source.config, out.sizes, config.cache.block_size, options.kv_dtype));
  // Ranks on the CPU share its memory.
  out.facts.kv_bytes_per_block = on_cpu ? block.all : block.most;
  if (on_cpu) out.device.available_bytes = available_bytes;
  FASTLLM_ASSIGN_OR_RETURN(out.resolved, ResolveLimits(config, out.facts, out.device));
  options.sched = out.resolved.sched;
  options.num_threads = out.resolved.num_threads;
  options.pin_threads = config.runtime.cpu_pin_threads;
  options.seed = config.model.seed;
  options.logprobs_mode = runtime::LogprobsModeOf(config.model.logprobs_mode);
  options.placement.attention_backend = runtime::AttentionBackendOf(config.runtime.attention_backend);
  FASTLLM_ASSIGN_OR_RETURN(options.linear, runtime::ChooseLinearMethod(config.model.quantization, source));
  options.linear.batch_invariant = config.model.batch_invariant.value_or(true);
  options.enforce_eager = config.runtime.enforce_eager;
  if (on_cpu) FASTLLM_RETURN_IF_ERROR(ResolveKvBlocks(config, out.facts, out.device, &out.resolved));
  options.kv = out.resolved.kv;
  return out;
}

}  // namespace fastllm::api
