// What a forward pass runs on.
#pragma once

#include <cstdint>

#include "ops/contract/common.h"
#include "ops/contract/kv_cache.h"
#include "runtime/tensor/scratch.h"

namespace fastllm::runtime {

// The ragged batch of one step: the tokens of all rows flattened. Pointers into the runner's staging buffers.
struct StepInput {
  const int32_t* ids = nullptr;           // [num_tokens]
  const int32_t* positions = nullptr;     // [num_tokens]
  const int64_t* slot_mapping = nullptr;  // [num_tokens], block * block_size + row
  const int32_t* query_start = nullptr;   // [num_seqs + 1]
  const int32_t* seq_len = nullptr;       // [num_seqs], tokens in the cache after the step
  const int32_t* block_table = nullptr;   // [num_seqs, max_blocks]
  int32_t num_tokens = 0;
  int32_t num_seqs = 0;
  int32_t max_blocks = 0;  // row stride of block_table
};

struct ForwardContext {
  StepInput input;
  const ops::KvCacheView* kv_layers = nullptr;  // [num_layers]
  Scratch* scratch = nullptr;
  ops::OpContext op;
};

}  // namespace fastllm::runtime
