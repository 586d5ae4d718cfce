// Resolve(): user configuration + model facts + device facts -> immutable values, each with its reason. Once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/config/resolved.h"
#include "fastllm/config.h"
#include "fastllm/engine.h"
#include "fastllm/status.h"

namespace fastllm {

struct ModelFacts {
  int32_t max_position_embeddings = 0;
  bool has_quantized_weights = false;  // or of 16 bits, that are computed with as such
  int64_t kv_bytes_per_block = 0;      // over all layers, for the configured block_size
};

struct DeviceFacts {
  std::string device = "cpu";
  std::string dtype = "float32";
  std::string dtype_reason = "the default on cpu";
  int64_t available_bytes = 0;  // memory that may still be taken after the weights
  // The KV cache without kv_cache_memory_bytes; 0: the smaller of 4 GiB and 40 % of available_bytes.
  int64_t kv_budget_bytes = 0;
  std::string kv_budget_reason = {};
  int32_t usable_cores = 1;  // allowed by affinity and cgroup
};

struct ResolvedConfig {
  SchedConfig sched;
  KvConfig kv;
  int32_t num_threads = 1;
  std::vector<ResolvedValue> values;  // what was derived, and why
};

// All of it.
Result<ResolvedConfig> Resolve(const EngineConfig& config, const ModelFacts& model, const DeviceFacts& device);

// In two parts, for a device whose free memory shows only once the model is there: everything but the number of KV
// blocks, and then that.
Result<ResolvedConfig> ResolveLimits(const EngineConfig& config, const ModelFacts& model, const DeviceFacts& device);
Status ResolveKvBlocks(const EngineConfig& config, const ModelFacts& model, const DeviceFacts& device,
                       ResolvedConfig* resolved);

}  // namespace fastllm
