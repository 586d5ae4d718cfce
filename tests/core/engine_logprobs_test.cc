// Log probabilities on their way from the executor to the deltas, and output_kind.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/engine/engine_core.h"
#include "core/engine/outbox.h"
#include "engine_fixture.h"

namespace fastllm {
namespace {

std::vector<PositionLogprobs> Expected(const Ids& ids, size_t first_place) {
  std::vector<PositionLogprobs> out;
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto p = static_cast<float>(first_place + i);
    out.push_back({{ids[i], -p, 1}, {ids[i] + 1, -p - 0.5f, 2}});
  }
  return out;
}

struct Logprobs {
  Ids ids;
  std::vector<PositionLogprobs> output, prompt;
  int num_deltas = 0;
  RequestDelta last;
};

Logprobs Follow(EngineCore* engine, RequestId id) {
  Logprobs all;
  while (all.last.finish_reason == FinishReason::kNone) {
    for (RequestDelta& d : engine->Drain(kLong)) {
      if (d.request_id != id) continue;
      EXPECT_TRUE(all.num_deltas == 0 || d.prompt_logprobs.empty()) << "prompt logprobs come first, and once";
      EXPECT_TRUE(d.logprobs.empty() || d.logprobs.size() == d.token_ids.size());
      all.ids.insert(all.ids.end(), d.token_ids.begin(), d.token_ids.end());
      all.output.insert(all.output.end(), d.logprobs.begin(), d.logprobs.end());
      all.prompt.insert(all.prompt.end(), d.prompt_logprobs.begin(), d.prompt_logprobs.end());
      ++all.num_deltas;
      all.last = d;
    }
  }
  return all;
}

EngineCore MakeEngine(const SchedConfig& sched = Sched(), const KvConfig& kv = Kv()) {
  return EngineCore(sched, kv, std::make_unique<FakeExecutor>(CountUp), Letters());
}

// What is not drained in time joins what is pending.
TEST(Outbox, JoinedNewsKeepTokensTextAndLogprobsInOrder) {
  RequestDelta delta, later;
  delta.request_id = later.request_id = 1;
  delta.token_ids = {3, 4};
  delta.text = "de";
  delta.logprobs = Expected(delta.token_ids, 7);
  delta.prompt_logprobs = {{}, {{1, -1.0f, 1}}};
  later.token_ids = {5};
  later.text = "f";
  later.logprobs = Expected(later.token_ids, 9);
  later.finish_reason = FinishReason::kLength;
  Outbox outbox;
  std::vector<RequestDelta> news = {delta}, used, drained;
  outbox.Push(&news, &used);
  news = {later};
  outbox.Push(&news, &used);
  outbox.Drain(milliseconds(0), &drained);
  ASSERT_EQ(drained.size(), 1u);
  delta = drained[0];
  EXPECT_EQ(delta.token_ids, (Ids{3, 4, 5}));
  EXPECT_EQ(delta.text, "def");
  EXPECT_EQ(delta.logprobs, Expected(delta.token_ids, 7));
  EXPECT_EQ(delta.prompt_logprobs.size(), 2u);
  EXPECT_EQ(delta.finish_reason, FinishReason::kLength);
}

TEST(EngineLogprobs, OnePerTokenForWhoAskedAndNoneForOthers) {
  EngineCore engine = MakeEngine();
  auto asks = MakeRequest(1, {0, 1}, 4);
  asks->sampling.logprobs = 1;
  ASSERT_TRUE(engine.Add(asks).ok());
  const Logprobs got = Follow(&engine, 1);
  EXPECT_EQ(got.ids, (Ids{2, 3, 4, 5}));
  EXPECT_EQ(got.output, Expected(got.ids, 2));
  EXPECT_TRUE(got.prompt.empty());
  ASSERT_TRUE(engine.Add(MakeRequest(2, {0, 1}, 4)).ok());
  EXPECT_TRUE(Follow(&engine, 2).output.empty());
}

TEST(EngineLogprobs, TokensAfterAStopStringTakeTheirLogprobsWithThem) {
  EngineCore engine = MakeEngine();
  auto request = MakeRequest(1, {0}, 8);
  request->sampling.logprobs = 1;
  request->sampling.stop = {"d"};
  ASSERT_TRUE(engine.Add(request).ok());
  const Logprobs got = Follow(&engine, 1);
  EXPECT_EQ(got.ids, (Ids{1, 2, 3}));
  EXPECT_EQ(got.output, Expected(got.ids, 1));
  EXPECT_EQ(got.last.finish_reason, FinishReason::kStop);
}

// Chunks of three tokens: the prompt's logprobs are put together, the first of them empty.
TEST(EngineLogprobs, PromptLogprobsOverChunksComeWithTheFirstDelta) {
  SchedConfig sched = Sched();
  sched.max_num_batched_tokens = 3;
  EngineCore engine = MakeEngine(sched);
  auto request = MakeRequest(1, {0, 1, 2, 3, 4, 5, 6, 0}, 2);
  request->sampling.prompt_logprobs = 1;
  request->read_prefix_cache = false;
  ASSERT_TRUE(engine.Add(request).ok());
  const Logprobs got = Follow(&engine, 1);
  ASSERT_EQ(got.prompt.size(), 8u);
  EXPECT_TRUE(got.prompt[0].empty());
  EXPECT_EQ(std::vector(got.prompt.begin() + 1, got.prompt.end()), Expected({1, 2, 3, 4, 5, 6, 0}, 1));
  // The same prompt is in the cache now, and is computed anew all the same.
  auto again = std::make_shared<Request>(*request);
  again->id = 2;
  ASSERT_TRUE(engine.Add(again).ok());
  const Logprobs second = Follow(&engine, 2);
  EXPECT_EQ(second.prompt, got.prompt);
  EXPECT_EQ(second.last.num_cached_tokens, 0);
}

// A pool for one and a half requests: the second is preempted, some of them in the middle of their prompts.
TEST(EngineLogprobs, PreemptedSequencesGiveEachPositionOnce) {
  SchedConfig sched = Sched(4);
  sched.max_num_batched_tokens = 5;
  EngineCore engine = MakeEngine(sched, Kv(9));
  for (RequestId id = 1; id <= 4; ++id) {
    auto request = MakeRequest(id, {0, 1, 2, 3, 0, 1, 2, 3, 0, 0}, 8);
    request->sampling.prompt_logprobs = 1;
    request->sampling.logprobs = 1;
    request->sampling.ignore_eos = true;
    request->read_prefix_cache = false;
    ASSERT_TRUE(engine.Add(request).ok());
  }
  std::map<RequestId, Logprobs> all;
  for (int running = 4; running > 0;) {
    for (RequestDelta& d : engine.Drain(kLong)) {
      Logprobs& one = all[d.request_id];
      one.ids.insert(one.ids.end(), d.token_ids.begin(), d.token_ids.end());
      one.output.insert(one.output.end(), d.logprobs.begin(), d.logprobs.end());
      one.prompt.insert(one.prompt.end(), d.prompt_logprobs.begin(), d.prompt_logprobs.end());
      running -= d.finish_reason != FinishReason::kNone ? 1 : 0;
    }
  }
  EXPECT_GT(engine.stats().preemptions, 0);
  for (const auto& [id, got] : all) {
    ASSERT_EQ(got.prompt.size(), 10u) << id;
    EXPECT_EQ(std::vector(got.prompt.begin() + 1, got.prompt.end()), Expected({1, 2, 3, 0, 1, 2, 3, 0, 0}, 1)) << id;
    EXPECT_EQ(got.output, Expected(got.ids, 10)) << id;
  }
}

TEST(EngineLogprobs, FinalOnlyIsOneDeltaWithEverything) {
  EngineCore engine = MakeEngine();
  auto request = MakeRequest(1, {0, 1, 2}, 5);
  request->sampling.logprobs = 1;
  request->sampling.prompt_logprobs = 1;
  request->read_prefix_cache = false;
  request->sampling.output_kind = "final_only";
  ASSERT_TRUE(engine.Add(request).ok());
  const Logprobs got = Follow(&engine, 1);
  EXPECT_EQ(got.num_deltas, 1);
  EXPECT_EQ(got.last.token_ids, (Ids{3, 4, 5, 6, 7}));
  EXPECT_EQ(got.last.text, "defgh");
  EXPECT_EQ(got.last.text_offsets, (Ids{0, 1, 2, 3, 4}));
  EXPECT_EQ(got.last.logprobs, Expected(got.last.token_ids, 3));
  EXPECT_EQ(got.last.prompt_logprobs.size(), 3u);
  EXPECT_EQ(got.last.finish_reason, FinishReason::kLength);
}

TEST(EngineLogprobs, FinalOnlyKeepsWhatAnAbortedRequestHad) {
  Gate gate;
  EngineCore engine(Sched(), Kv(), std::make_unique<FakeExecutor>(CountUp, gate.Hook()), Letters());
  auto request = MakeRequest(1, {0}, 8);
  request->sampling.output_kind = "final_only";
  ASSERT_TRUE(engine.Add(request).ok());
  gate.entered.acquire();
  engine.Abort(1);
  gate.Open();
  const Logprobs got = Follow(&engine, 1);
  EXPECT_EQ(got.num_deltas, 1);
  EXPECT_EQ(got.last.finish_reason, FinishReason::kAbort);
  EXPECT_GE(got.last.token_ids.size(), 1u);
  EXPECT_EQ(got.last.token_ids.front(), 1);
}

}  // namespace
}  // namespace fastllm
