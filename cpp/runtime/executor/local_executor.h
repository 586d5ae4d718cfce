// LocalExecutor: one rank in this process. A worker thread owns the model runner; the engine thread talks to it
// through Executor.
#pragma once

#include <memory>

#include "core/engine/executor.h"
#include "fastllm/status.h"
#include "runtime/models/model_config.h"
#include "runtime/runner/runner_options.h"

namespace fastllm::runtime {

// Loads the weights, allocates the KV cache and starts the worker. Adds its phases ("load_weights", "kv_cache") to
// `phases` when given. `source` is consumed.
Result<std::unique_ptr<Executor>> MakeLocalExecutor(ModelSource source, const RunnerOptions& options,
                                                    PhaseSeconds* phases);

}  // namespace fastllm::runtime
