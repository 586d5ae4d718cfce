// What a model runner is made with, and the phases of its start.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/config/resolved.h"
#include "fastllm/logits_processor.h"
#include "fastllm/status.h"
#include "ops/contract/common.h"
#include "runtime/models/model_config.h"
#include "runtime/quant/linear_method.h"
#include "runtime/runner/device_memory.h"
#include "runtime/sample/logprobs_mode.h"
#include "runtime/tensor/placement.h"

namespace fastllm::runtime {

struct RunnerOptions {
  KvConfig kv;
  SchedConfig sched;
  int32_t num_threads = 1;
  int64_t seed = 0;  // dummy weights
  Placement placement;
  bool enforce_eager = false;  // no graphs
  // On a device: the KV cache for what is left there once everything else has its memory. Without it `kv` is final.
  std::function<Result<KvConfig>(const DeviceMemoryUse&)> size_kv;
  std::vector<std::shared_ptr<LogitsProcessor>> logits_processors;
  LogprobsMode logprobs_mode = LogprobsMode::kRawLogprobs;
  ops::DType kv_dtype = ops::DType::kF32;
  LinearMethod linear;
  bool keep_quantized = true;  // compute with quantised weights as stored; false: all of them become float32
};

using PhaseSeconds = std::vector<std::pair<std::string, double>>;

// Bytes that the weights of an opened model will take in memory.
int64_t WeightBytes(const ModelSource& source, bool keep_quantized);

// Whether a weight of the model is computed with as it is stored: there is a quantised one, and keep_quantized.
bool UsesQuantized(const ModelSource& source, bool keep_quantized);

// The type that the option kv_cache_dtype stands for.
ops::DType KvDType(const std::string& kv_cache_dtype, bool quantized);

// Bytes of KV cache that one block takes over all layers of this model.
int64_t KvBytesPerBlock(const ModelConfig& config, int32_t block_size, ops::DType dtype = ops::DType::kF32);

}  // namespace fastllm::runtime
