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
#include "ops/contract/device.h"
#include "ops/table/op_table.h"
#include "runtime/comm/ranks.h"
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
  bool pin_threads = false;  // on the CPU, a core for each
  int64_t seed = 0;          // dummy weights
  Placement placement;
  bool enforce_eager = false;  // no graphs
  // On a device: the KV cache for what is left there once everything else has its memory. Without it `kv` is final.
  std::function<Result<KvConfig>(const DeviceMemoryUse&)> size_kv;
  std::vector<std::shared_ptr<LogitsProcessor>> logits_processors;
  LogprobsMode logprobs_mode = LogprobsMode::kRawLogprobs;
  ops::DType kv_dtype = ops::DType::kF32;
  LinearMethod linear;
  Ranks ranks;                        // this runner's place among others; one rank by default
  bool keep_quantized = true;         // compute with quantised and 16-bit weights as stored; false: all become float32
  bool quantize_int8 = false;         // matrices of floats become 8-bit blocks when they are loaded
  const ops::OpTable* ops = nullptr;  // on the CPU, in place of the built-in one; outlives the runner
  const ops::DeviceApi* device = nullptr;  // of DeviceRunner, in place of the placement's; outlives the runner
};

using PhaseSeconds = std::vector<std::pair<std::string, double>>;

// Bytes that the weights of an opened model will take in memory.
int64_t WeightBytes(const ModelSource& source, bool keep_quantized, bool quantize_int8 = false);

// Whether a matrix of the model is computed with in 16 bits or fewer: one that is stored so, with keep_quantized, or
// any with quantize_int8.
bool UsesQuantized(const ModelSource& source, bool keep_quantized, bool quantize_int8 = false);

// The type that the option kv_cache_dtype stands for.
ops::DType KvDType(const std::string& kv_cache_dtype, bool quantized);

// Bytes of KV cache that one block takes over all layers of this model.
int64_t KvBytesPerBlock(const ModelConfig& config, int32_t block_size, ops::DType dtype = ops::DType::kF32);

}  // namespace fastllm::runtime
