// What a model runner is made with, and the phases of its start.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/config/resolved.h"
#include "runtime/models/model_config.h"

namespace fastllm::runtime {

struct RunnerOptions {
  KvConfig kv;
  SchedConfig sched;
  int32_t num_threads = 1;
  int64_t seed = 0;            // dummy weights
  bool keep_quantized = true;  // compute with quantised weights as stored; false: all of them become float32
};

using PhaseSeconds = std::vector<std::pair<std::string, double>>;

// Bytes that the weights of an opened model will take in memory.
int64_t WeightBytes(const ModelSource& source, bool keep_quantized);

// Bytes of KV cache that one block takes over all layers of this model (float32).
int64_t KvBytesPerBlock(const ModelConfig& config, int32_t block_size);

}  // namespace fastllm::runtime
