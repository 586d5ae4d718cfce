// What the tests of the engine share: a vocabulary of letters, small requests, a collector of deltas, a gate.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <semaphore>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/engine/engine_core.h"
#include "engine_fake_executor.h"

namespace fastllm {

using Ids = std::vector<TokenId>;
using std::chrono::milliseconds;
inline constexpr milliseconds kLong{60000};
inline constexpr TokenId kEos = 9;

// 0..8 are the letters a..i, 9 the end of sequence.
inline std::shared_ptr<const TokenTable> Letters() {
  auto table = std::make_shared<TokenTable>();
  for (char c = 'a'; c <= 'i'; ++c) table->bytes.emplace_back(1, c);
  table->bytes.push_back("</s>");
  table->special.assign(10, 0);
  table->special[kEos] = 1;
  return table;
}

// The next token is the last one plus one: a prompt of {0} goes on b c d e ...
inline TokenId CountUp(std::span<const TokenId> tokens, size_t) { return tokens.back() + 1; }

inline SchedConfig Sched(int32_t max_num_seqs = 4) {
  SchedConfig sched;
  sched.max_num_seqs = max_num_seqs;
  sched.max_num_batched_tokens = 64;
  sched.max_model_len = 64;
  return sched;
}

inline KvConfig Kv(int32_t num_blocks = 32) {
  KvConfig kv;
  kv.num_blocks = num_blocks;
  kv.block_size = 4;
  return kv;
}

inline std::shared_ptr<Request> MakeRequest(RequestId id, Ids prompt, int32_t max_tokens) {
  auto request = std::make_shared<Request>();
  request->id = id;
  request->prompt = std::move(prompt);
  request->max_tokens = max_tokens;
  request->eos_token_ids = {kEos};
  return request;
}

struct Outcome {
  Ids ids;
  std::string text;
  int num_finishes = 0;
  RequestDelta last;
};

// Drains until `num_finishes` requests have ended.
inline std::map<RequestId, Outcome> Collect(EngineCore* engine, int num_finishes) {
  std::map<RequestId, Outcome> outcomes;
  while (num_finishes > 0) {
    const auto deltas = engine->Drain(kLong);
    if (deltas.empty()) {
      ADD_FAILURE() << num_finishes << " requests did not end";
      break;
    }
    for (const RequestDelta& d : deltas) {
      Outcome& o = outcomes[d.request_id];
      EXPECT_EQ(o.num_finishes, 0) << "a delta after the last one of " << d.request_id;
      o.ids.insert(o.ids.end(), d.token_ids.begin(), d.token_ids.end());
      o.text += d.text;
      o.last = d;
      if (d.finish_reason == FinishReason::kNone) continue;
      ++o.num_finishes;
      --num_finishes;
    }
  }
  return outcomes;
}

// Stops the executor inside a step until the test lets it go on.
struct Gate {
  std::counting_semaphore<> entered{0}, leave{0};
  std::atomic<bool> closed{true};
  FakeExecutor::Hook Hook() {
    return [this](StepResult*) {
      if (!closed) return;
      entered.release();
      leave.acquire();
    };
  }
  void Open() {
    closed = false;
    leave.release();
  }
};

inline bool Readable(int fd) {
  pollfd p{fd, POLLIN, 0};
  return poll(&p, 1, 0) == 1;
}

}  // namespace fastllm
