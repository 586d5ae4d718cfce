// The tiny model as a runner takes it, and plans for it.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "core/step/step_plan.h"
#include "runtime/runner/runner_options.h"
#include "tests/runtime/model/tiny_model.h"

namespace fastllm::runtime::testing {

inline constexpr int32_t kBlockSize = 4;

inline RunnerOptions TinyOptions() {
  RunnerOptions o;
  o.sched.max_model_len = 96;
  o.sched.max_num_seqs = 8;
  o.sched.max_num_batched_tokens = 128;
  o.kv.num_blocks = 200;
  o.kv.block_size = kBlockSize;
  o.num_threads = 2;
  return o;
}

inline ModelSource TinySource() {
  ModelSource s;
  s.config = TinyConfig();
  s.tensors = TinyWeights(s.config, 3);
  return s;
}

inline std::vector<TokenId> Prompt(int32_t n, int32_t salt) {
  std::vector<TokenId> t(n);
  for (int32_t i = 0; i < n; ++i) t[i] = (i * i * 7 + i * 13 + salt * 29) % 61;
  return t;
}

// Blocks scattered over the pool, so that a table read wrongly shows.
inline NewSequence Sequence(RequestId id, std::vector<TokenId> tokens, int32_t total) {
  NewSequence s;
  s.id = id;
  s.num_prompt_tokens = static_cast<int32_t>(tokens.size());
  s.tokens = std::move(tokens);
  s.block_ids.resize(1);
  for (int32_t b = 0; b * kBlockSize < total; ++b) {
    s.block_ids[0].push_back(1 + (static_cast<int32_t>(id) + b * 8) % 199);
  }
  return s;
}

inline void AddRow(StepPlan& plan, RequestId id, int32_t count, bool sample) {
  plan.rows.push_back({id, count, sample});
  plan.total_tokens += count;
}

}  // namespace fastllm::runtime::testing
