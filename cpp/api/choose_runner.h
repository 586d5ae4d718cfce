// From configuration and model to what a model runner is made with.
#pragma once

#include <memory>
#include <vector>

#include "core/config/resolve.h"
#include "fastllm/config.h"
#include "fastllm/logits_processor.h"
#include "fastllm/status.h"
#include "runtime/comm/topology.h"
#include "runtime/models/model_config.h"
#include "runtime/runner/runner_options.h"

namespace fastllm::api {

struct RunnerChoice {
  ResolvedConfig resolved;
  runtime::RunnerOptions options;  // without the ranks' place; options.kv is final on the CPU alone
  runtime::ParallelSizes sizes;
  // What the KV cache of a device is sized by once the model is there.
  ModelFacts facts;
  DeviceFacts device;
};

// Chooses device and data types and resolves the configuration. `available_bytes`: memory for the KV cache on the CPU;
// 0: it is not looked at.
Result<RunnerChoice> ChooseRunner(const EngineConfig& config, const runtime::ModelSource& source,
                                  int64_t available_bytes);

// Bytes that the weights take on the CPU, as ChooseRunner() would have them.
int64_t CpuWeightBytes(const EngineConfig& config, const runtime::ModelSource& source);

}  // namespace fastllm::api
