// From configuration and model to a running executor.
#pragma once

#include <memory>
#include <vector>

#include "core/config/resolve.h"
#include "core/engine/executor.h"
#include "fastllm/config.h"
#include "fastllm/logits_processor.h"
#include "fastllm/status.h"
#include "runtime/models/model_config.h"
#include "runtime/runner/runner_options.h"

namespace fastllm::api {

struct StartedExecutor {
  std::unique_ptr<Executor> executor;
  ResolvedConfig resolved;
};

// Chooses device and data types, resolves the configuration, loads the model. On the CPU the KV cache is sized before
// that, on a device when the memory of everything else is known. Adds the runner's phases to `phases`.
Result<StartedExecutor> StartExecutor(const EngineConfig& config, runtime::ModelSource source,
                                      std::vector<std::shared_ptr<LogitsProcessor>> logits_processors,
                                      runtime::PhaseSeconds* phases);

}  // namespace fastllm::api
