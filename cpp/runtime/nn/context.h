// What a forward pass runs on.
#pragma once

#include <cstdint>

#include "ops/contract/common.h"
#include "ops/contract/kv_cache.h"
#include "runtime/comm/communicator.h"
#include "runtime/tensor/scratch.h"

namespace fastllm::runtime {

// The ragged batch of one step: the tokens of all rows flattened. Pointers into the runner's buffers, on its device.
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

// The tokens whose hidden states are wanted, at most one of a sequence, its last; unset: those of all tokens. What
// comes after the last layer's keys and values is then computed for these alone.
struct WantedRows {
  const int32_t* tokens = nullptr;       // [count], ascending
  const int32_t* query_start = nullptr;  // [num_seqs + 1], of these tokens alone; null: attention is for all tokens
  int32_t count = 0;

  bool some() const { return tokens != nullptr; }
};

// How the step's attention is spread, for backends that have a plan (contract/attention_plan.h); unset on the others.
struct AttentionStep {
  const int32_t* plan = nullptr;
  int32_t decode_workers = 0;
  int32_t prefill_tiles = 0;
  void* workspace = nullptr;
  int64_t workspace_bytes = 0;
};

struct ForwardContext {
  StepInput input;
  WantedRows wanted;
  AttentionStep attention;
  const ops::KvCacheView* kv_layers = nullptr;  // [num_layers]
  Scratch* scratch = nullptr;
  ops::OpContext op;
  bool cuts_sums = false;    // over ranks may be cut: the step is not captured
  bool defers_sums = false;  // over ranks: to the norm that takes what a block leaves
  int64_t first_piece = 0;   // rows of the first of two pieces that these sums are cut into; 0: they are whole
  SumPiece piece;            // that the tensors hold, where they hold one
};

}  // namespace fastllm::runtime
