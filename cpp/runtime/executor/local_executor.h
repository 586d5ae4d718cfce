// LocalExecutor: one rank in this process. A worker thread owns the model runner; the engine thread talks to it
// through Executor.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/config/resolved.h"
#include "core/engine/executor.h"
#include "fastllm/status.h"
#include "runtime/models/model_config.h"

namespace fastllm::runtime {

struct RunnerOptions {
  KvConfig kv;
  SchedConfig sched;
  int32_t num_threads = 1;
  int64_t seed = 0;  // dummy weights
};

using PhaseSeconds = std::vector<std::pair<std::string, double>>;

// Loads the weights, allocates the KV cache and starts the worker. Adds its phases ("load_weights", "kv_cache") to
// `phases` when given. `source` is consumed.
Result<std::unique_ptr<Executor>> MakeLocalExecutor(ModelSource source, const RunnerOptions& options, PhaseSeconds* phases);

// Bytes of KV cache that one block takes over all layers of this model (float32).
int64_t KvBytesPerBlock(const ModelConfig& config, int32_t block_size);

}  // namespace fastllm::runtime
