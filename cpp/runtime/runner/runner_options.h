// What a model runner is made with, and the phases of its start.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/config/resolved.h"
#include "fastllm/logits_processor.h"
#include "runtime/models/model_config.h"
#include "runtime/sample/logprobs_mode.h"

namespace fastllm::runtime {

struct RunnerOptions {
  KvConfig kv;
  SchedConfig sched;
  int32_t num_threads = 1;
  int64_t seed = 0;  // dummy weights
  std::vector<std::shared_ptr<LogitsProcessor>> logits_processors;
  LogprobsMode logprobs_mode = LogprobsMode::kRawLogprobs;
};

using PhaseSeconds = std::vector<std::pair<std::string, double>>;

// Bytes of KV cache that one block takes over all layers of this model (float32).
int64_t KvBytesPerBlock(const ModelConfig& config, int32_t block_size);

}  // namespace fastllm::runtime
