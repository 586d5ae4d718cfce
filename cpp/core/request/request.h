// Request: the immutable input of one generation. Validated before it is made (api/ and request/validate.h), so
// the rooms that receive it do not check again.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/ids.h"
#include "fastllm/extra_keys.h"
#include "fastllm/sampling_params.h"

namespace fastllm {

struct Request {
  RequestId id = 0;
  std::vector<TokenId> prompt;  // at least one token
  SamplingParams sampling;
  uint64_t seed = 0;                   // sampling.seed, or one that the engine drew
  int32_t max_tokens = 0;              // resolved: > 0, prompt + max_tokens <= max_model_len
  std::vector<TokenId> eos_token_ids;  // the model's; [0] is the primary one
  ExtraKeys extra_keys;
  std::vector<TokenId> dry_breakers;  // tokens of sampling.dry_sequence_breakers, ascending; for DRY only
  // n > 1: a request for each output; their ids are consecutive and the parent is the first. parent_id 0: n is 1.
  RequestId parent_id = 0;
  int32_t index = 0;                       // of the output
  std::vector<int32_t> logits_processors;  // of those that the engine was made with, which take part
  int64_t arrival_ns = 0;                  // when the host submitted it, on the steady clock; 0: unknown
  int32_t priority = 0;                    // lower comes first; for scheduling_policy "priority" only
  int64_t timeout_ms = 0;                  // since the arrival, for the whole request; 0: SchedConfig's
  int64_t max_queue_ms = 0;                // since the arrival, until its first step; 0: SchedConfig's
  bool read_prefix_cache = true;
};

}  // namespace fastllm
