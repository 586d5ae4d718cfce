// A tiny model over ranks and the requests that tests of the executors run on it.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/engine/engine_core.h"
#include "runtime/comm/topology.h"
#include "runtime/runner/runner_options.h"
#include "tests/runtime/model/tiny_model.h"

namespace fastllm::runtime::testing::ranked {

using Ids = std::vector<TokenId>;

inline ModelSource Source() {
  ModelSource source;
  source.config = TinyConfig();
  source.config.num_layers = 4;
  source.config.num_heads = 12;
  source.config.num_kv_heads = 12;
  source.config.intermediate_size = 48;
  source.tensors = TinyWeights(source.config, 3);
  return source;
}

struct Mode {
  const char* name;
  ParallelSizes sizes;
  bool async = true;
  bool prefix_cache = true;
  int32_t num_blocks = 200;
  int32_t budget = 128;
};

inline RunnerOptions Options(const Mode& m) {
  RunnerOptions o;
  o.sched.max_model_len = 96;
  o.sched.max_num_seqs = 8;
  o.sched.max_num_batched_tokens = m.budget;
  o.sched.async_scheduling = m.async;
  o.sched.pipeline_stages = m.sizes.pipeline;
  o.kv.num_blocks = m.num_blocks;
  o.kv.block_size = 4;
  o.kv.enable_prefix_caching = m.prefix_cache;
  return o;
}

// Prompts of many lengths, some with a common beginning; greedy and seeded requests, some with logprobs.
inline std::shared_ptr<Request> MakeRequest(int32_t i) {
  auto r = std::make_shared<Request>();
  r->id = static_cast<RequestId>(i) + 1;
  for (int32_t t = 0; t < 5 + i * 7 % 30; ++t) r->prompt.push_back((i % 3 == 0 ? t * t + 3 : t * 11 + i * 5) % 61);
  r->max_tokens = 6 + i % 5 * 4;
  r->sampling.temperature = i % 2 == 0 ? 0.0f : 1.2f;
  r->sampling.detokenize = false;
  if (i % 4 == 1) r->sampling.repetition_penalty = 1.3f;
  if (i % 5 == 2) r->sampling.logprobs = 2;
  r->seed = static_cast<uint64_t>(i);
  return r;
}

inline constexpr int32_t kRequests = 14;

struct Outcome {
  Ids ids;
  size_t logprobs = 0;
  Status error;
};

inline std::map<RequestId, Outcome> Collect(EngineCore* engine, size_t count) {
  std::map<RequestId, Outcome> outcomes;
  while (count > 0) {
    const auto deltas = engine->Drain(std::chrono::seconds(60));
    if (deltas.empty()) {
      ADD_FAILURE() << count << " requests did not end";
      break;
    }
    for (const RequestDelta& d : deltas) {
      Outcome& o = outcomes[d.request_id];
      o.ids.insert(o.ids.end(), d.token_ids.begin(), d.token_ids.end());
      o.logprobs += d.logprobs.size();
      if (d.finish_reason == FinishReason::kNone) continue;
      o.error = Status(d.error_code, d.error);
      --count;
    }
  }
  return outcomes;
}

inline std::map<RequestId, Outcome> RunAll(EngineCore* engine) {
  for (int32_t i = 0; i < kRequests; ++i) EXPECT_TRUE(engine->Add(MakeRequest(i)).ok());
  return Collect(engine, kRequests);
}

}  // namespace fastllm::runtime::testing::ranked
