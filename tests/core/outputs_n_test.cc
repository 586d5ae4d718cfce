// Requests with n > 1: one sequence for each output, which share the KV of the prompt, under one handle.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine_fixture.h"
#include "sched_fixture.h"

namespace fastllm {
namespace {

class FamilyTest : public SchedulerTest {
 protected:
  // Outputs first .. first + n - 1 of one request, whose prompt is no other family's.
  void AddFamily(RequestId first, int32_t n, int32_t prompt, int32_t max_tokens = 100) {
    for (int32_t index = 0; index < n; ++index) {
      auto request = Make(first + index, Range(prompt, static_cast<TokenId>(first) * 1000), max_tokens);
      request->parent_id = first;
      request->index = index;
      requests_[request->id] = request;
      ASSERT_TRUE(scheduler().Add(request).ok());
    }
  }

  // The prompt's two full blocks once, and one block of each output.
  void ExpectSharedPrompt() {
    AddFamily(1, 3, 10);
    EXPECT_EQ(Rows(Step()), "1:10* 2:2* 3:2*");
    EXPECT_EQ(scheduler().stats().used_blocks, 2 + 3);
    EXPECT_EQ(executor_->HeldBlocks().size(), 5u);
  }

  std::map<RequestId, std::shared_ptr<Request>> requests_;
};

TEST_F(FamilyTest, OutputsShareTheBlocksOfThePrompt) { ExpectSharedPrompt(); }

TEST_F(FamilyTest, AlsoWithPrefixCachingOff) {
  kv_.enable_prefix_caching = false;
  ExpectSharedPrompt();
  EXPECT_EQ(scheduler().stats().prefix_query_tokens, 0);
  EXPECT_EQ(scheduler().stats().prefix_hit_tokens, 0);
  // The same prompt again, alone and as another family: nothing of the first one is read.
  ASSERT_TRUE(scheduler().Add(Make(9, Range(10, 1000))).ok());
  EXPECT_EQ(Rows(Step()), "1:1* 2:1* 3:1* 9:10*");
  for (const RequestId id : {10, 11}) {
    auto request = Make(id, Range(10, 1000));
    request->parent_id = 10;
    request->index = static_cast<int32_t>(id - 10);
    ASSERT_TRUE(scheduler().Add(request).ok());
  }
  EXPECT_EQ(Rows(Step()), "1:1* 2:1* 3:1* 9:1* 10:10* 11:2*");
}

TEST_F(FamilyTest, ALongPromptIsComputedOnce) {
  sched_.max_num_batched_tokens = 8;
  AddFamily(1, 3, 20);
  EXPECT_EQ(scheduler().stats().waiting, 3);
  EXPECT_EQ(scheduler().stats().queued_tokens, 60);
  EXPECT_EQ(Rows(Step()), "1:8");
  EXPECT_EQ(scheduler().stats().waiting, 2);
  EXPECT_EQ(scheduler().stats().queued_tokens, 40);
  EXPECT_EQ(Rows(Step()), "1:8");
  EXPECT_EQ(Rows(Step()), "1:4* 2:1* 3:1*");  // whole blocks: the others compute its last token alone
  EXPECT_EQ(scheduler().stats().scheduled_tokens, 20 + 1 + 1);
  EXPECT_EQ(scheduler().stats().used_blocks, 5);
  EXPECT_EQ(scheduler().stats().waiting, 0);
  EXPECT_EQ(scheduler().stats().queued_tokens, 0);
}

TEST_F(FamilyTest, AFairShareDoesNotComputeThePromptTwice) {
  sched_.long_prefill_fair_share = true;
  sched_.max_num_batched_tokens = 16;
  AddFamily(1, 4, 40);
  EXPECT_EQ(Rows(Step()), "1:16");
  EXPECT_EQ(Rows(Step()), "1:16");
  EXPECT_EQ(Rows(Step()), "1:8* 2:1* 3:1* 4:1*");
  EXPECT_EQ(scheduler().stats().scheduled_tokens, 43);
}

TEST_F(FamilyTest, OutputsOfALeaderThatIsCutByItsShareFollowInTheNextStep) {
  sched_.long_prefill_fair_share = true;
  AddFamily(1, 2, 40);
  Add(9, 8);
  EXPECT_EQ(Rows(Step()), "1:40* 9:8*");  // first its share, then what was left of the budget
  EXPECT_EQ(Rows(Step()), "1:1* 9:1* 2:1*");
}

TEST_F(FamilyTest, OthersAreNotHeldUpByFollowers) {
  sched_.max_num_batched_tokens = 8;
  AddFamily(1, 2, 15);
  Add(9, 3);
  EXPECT_EQ(Rows(Step()), "1:8");
  EXPECT_EQ(Rows(Step()), "1:7* 2:1");  // ahead of what came later
  EXPECT_EQ(Rows(Step()), "1:1* 2:2* 9:3*");
}

TEST_F(FamilyTest, FollowersOfWholeBlocksTakeNoneOfTheBudgetOfOthers) {
  sched_.max_num_batched_tokens = 8;
  AddFamily(1, 2, 12);
  Add(9, 3);
  EXPECT_EQ(Rows(Step()), "1:8");
  EXPECT_EQ(Rows(Step()), "1:4* 2:1* 9:3*");
}

TEST_F(FamilyTest, FollowersGoOnWithoutTheirLeader) {
  sched_.max_num_batched_tokens = 8;
  AddFamily(1, 3, 20, 2);
  EXPECT_EQ(Rows(Step()), "1:8");
  EXPECT_TRUE(scheduler().Finish(3));  // one that still follows
  EXPECT_TRUE(scheduler().Finish(1));
  EXPECT_EQ(scheduler().stats().waiting, 1);
  while (scheduler().HasWork()) Step();
  EXPECT_EQ(outputs_[2], FakeOutput(*requests_[2], kFixtureVocab, 2));
  EXPECT_FALSE(outputs_.contains(1));
  EXPECT_FALSE(outputs_.contains(3));
  EXPECT_EQ(scheduler().stats().used_blocks, 0);
  EXPECT_EQ(scheduler().stats().queued_tokens, 0);
}

TEST_F(FamilyTest, ByPriorityToo) {
  sched_.policy = SchedulingPolicy::kPriority;
  ExpectSharedPrompt();
}

std::vector<std::shared_ptr<Request>> RandomFamily(RequestId first, int32_t n, std::mt19937* random) {
  std::vector<std::shared_ptr<Request>> family;
  for (int32_t index = 0; index < n; ++index) {
    auto request = std::make_shared<Request>();
    request->id = first + index;
    request->parent_id = n > 1 ? first : 0;
    request->index = index;
    request->prompt = Range(1 + static_cast<int32_t>(first % 37), static_cast<TokenId>(first % 3) * 100);
    request->max_tokens = 1 + static_cast<int32_t>((*random)() % 12);
    family.push_back(std::move(request));
  }
  return family;
}

// Families of all sizes in a small pool, with preemptions and aborts. The executor checks that each row reads its own
// KV.
void RunRandomly(uint32_t seed, bool caching, bool overlap) {
  std::mt19937 random(seed);
  const auto below = [&random](int32_t n) { return static_cast<int32_t>(random() % n); };
  SchedConfig sched;
  sched.max_num_seqs = 5;
  sched.max_num_batched_tokens = 12;
  sched.max_model_len = 200;
  sched.async_scheduling = overlap;
  KvConfig kv;
  kv.num_blocks = 24;
  kv.block_size = 4;
  kv.enable_prefix_caching = caching;
  Scheduler scheduler(sched, kv, [] { return int64_t{0}; });
  KvCheckingExecutor executor(kv, kFixtureVocab);
  std::map<RequestId, std::shared_ptr<Request>> requests;
  std::map<RequestId, std::vector<TokenId>> outputs;
  std::set<RequestId> open;
  std::vector<StepPlan> in_flight;
  RequestId next = 1;
  for (int round = 0; round < 400 || !open.empty(); ++round) {
    if (round < 400 && open.size() < 12 && below(3) == 0) {
      for (auto& request : RandomFamily(next, 1 + below(5), &random)) {
        requests[request->id] = request;
        open.insert(request->id);
        ASSERT_TRUE(scheduler.Add(request).ok());
        ++next;
      }
    }
    if (!open.empty() && below(12) == 0) {
      const RequestId id = *std::next(open.begin(), below(static_cast<int32_t>(open.size())));
      ASSERT_TRUE(scheduler.Finish(id));
      open.erase(id);
    }
    while (static_cast<int32_t>(in_flight.size()) < scheduler.max_in_flight()) {
      StepPlan plan = scheduler.Schedule();
      if (plan.rows.empty()) break;
      in_flight.push_back(std::move(plan));
    }
    ASSERT_TRUE(!in_flight.empty() || open.empty()) << "no step can be planned";
    if (in_flight.empty()) continue;
    for (SequenceUpdate& update : scheduler.Update(in_flight.front(), executor.Run(in_flight.front()))) {
      auto& output = outputs[update.id];
      output.insert(output.end(), update.new_tokens.begin(), update.new_tokens.end());
      if (update.finish_reason == FinishReason::kNone) continue;
      open.erase(update.id);
      const Request& request = *requests[update.id];
      ASSERT_EQ(output, FakeOutput(request, kFixtureVocab, request.max_tokens)) << "request " << update.id;
    }
    in_flight.erase(in_flight.begin());
  }
  const SchedulerStats stats = scheduler.stats();
  EXPECT_EQ(stats.used_blocks, 0);
  EXPECT_EQ(stats.waiting, 0);
  EXPECT_EQ(stats.queued_tokens, 0);
  EXPECT_GT(stats.preemptions, 0);
}

TEST(FamilyRandom, EveryOutputIsWhatItWouldBeAlone) {
  for (uint32_t seed = 1; seed <= 12; ++seed) RunRandomly(seed, seed % 2 == 0, seed % 4 < 2);
}

std::vector<std::shared_ptr<const Request>> Family(RequestId first, int32_t n, Ids prompt, int32_t max_tokens) {
  std::vector<std::shared_ptr<const Request>> outputs;
  for (int32_t index = 0; index < n; ++index) {
    auto request = MakeRequest(first + index, prompt, max_tokens);
    request->parent_id = first;
    request->index = index;
    outputs.push_back(std::move(request));
  }
  return outputs;
}

// By index, of one request; ends when `n` outputs have ended.
std::map<int32_t, Outcome> CollectOutputs(EngineCore* engine, RequestId handle, int32_t n) {
  std::map<int32_t, Outcome> outcomes;
  while (n > 0) {
    const auto deltas = engine->Drain(kLong);
    if (deltas.empty()) {
      ADD_FAILURE() << n << " outputs did not end";
      break;
    }
    for (const RequestDelta& d : deltas) {
      EXPECT_EQ(d.request_id, handle);
      Outcome& o = outcomes[d.index];
      EXPECT_EQ(o.num_finishes, 0) << "a delta after the last one of output " << d.index;
      o.ids.insert(o.ids.end(), d.token_ids.begin(), d.token_ids.end());
      o.text += d.text;
      o.last = d;
      if (d.finish_reason == FinishReason::kNone) continue;
      ++o.num_finishes;
      --n;
    }
  }
  return outcomes;
}

TEST(EngineOutputs, EachOutputHasItsOwnDeltasUnderTheHandle) {
  EngineCore engine(Sched(), Kv(), std::make_unique<FakeExecutor>(CountUp), Letters());
  auto family = Family(5, 3, {0, 1, 2, 0, 0}, 4);
  auto stops = std::make_shared<Request>(*family[1]);
  stops->sampling.stop = {"cd"};
  family[1] = stops;
  ASSERT_TRUE(engine.AddAll(std::move(family)).ok());
  auto outcomes = CollectOutputs(&engine, 5, 3);
  ASSERT_EQ(outcomes.size(), 3u);
  for (const int32_t index : {0, 2}) {
    EXPECT_EQ(outcomes[index].text, "bcde");
    EXPECT_EQ(outcomes[index].ids, (Ids{1, 2, 3, 4}));
    EXPECT_EQ(outcomes[index].last.finish_reason, FinishReason::kLength);
  }
  EXPECT_EQ(outcomes[1].text, "b");
  EXPECT_EQ(outcomes[1].last.finish_reason, FinishReason::kStop);
  EXPECT_EQ(outcomes[1].last.stop_reason, StopReason(std::string("cd")));
  EXPECT_EQ(outcomes[0].last.num_cached_tokens, 0);
  EXPECT_EQ(outcomes[2].last.num_cached_tokens, 4);
  EXPECT_EQ(engine.stats().used_blocks, 0);
}

TEST(EngineOutputs, NewsThatWaitJoinThoseOfTheirOwnOutput) {
  EngineCore engine(Sched(), Kv(), std::make_unique<FakeExecutor>(CountUp), Letters());
  ASSERT_TRUE(engine.AddAll(Family(5, 2, {0}, 6)).ok());
  // Nobody drains before the end: a request that comes behind these and ends says that they have ended.
  ASSERT_TRUE(engine.DrainAndShutdown(kLong));
  const auto deltas = engine.Drain(milliseconds(0));
  ASSERT_EQ(deltas.size(), 2u);
  for (int32_t index = 0; index < 2; ++index) {
    EXPECT_EQ(deltas[index].request_id, 5u);
    EXPECT_EQ(deltas[index].index, index);
    EXPECT_EQ(deltas[index].token_ids, (Ids{1, 2, 3, 4, 5, 6}));
    EXPECT_EQ(deltas[index].text, "bcdefg");
  }
}

TEST(EngineOutputs, AbortEndsAllOutputsThatRun) {
  Gate gate;
  EngineCore engine(Sched(), Kv(), std::make_unique<FakeExecutor>(CountUp, gate.Hook()), Letters());
  auto family = Family(5, 3, {0}, 40);
  auto first = std::make_shared<Request>(*family[0]);
  first->max_tokens = 1;
  family[0] = first;
  ASSERT_TRUE(engine.AddAll(std::move(family)).ok());
  ASSERT_TRUE(engine.Add(MakeRequest(8, {3}, 2)).ok());
  gate.entered.acquire();
  engine.Abort(6);  // no handle: an output alone cannot be ended
  gate.leave.release();
  gate.entered.acquire();  // the first output has ended
  engine.Abort(5);
  gate.Open();
  std::map<std::pair<RequestId, int32_t>, FinishReason> reasons;
  while (reasons.size() < 4) {
    const auto deltas = engine.Drain(kLong);
    ASSERT_FALSE(deltas.empty());
    for (const RequestDelta& d : deltas) {
      if (d.finish_reason != FinishReason::kNone) reasons[{d.request_id, d.index}] = d.finish_reason;
    }
  }
  EXPECT_EQ((reasons[{5, 0}]), FinishReason::kLength);
  EXPECT_EQ((reasons[{5, 1}]), FinishReason::kAbort);
  EXPECT_EQ((reasons[{5, 2}]), FinishReason::kAbort);
  EXPECT_EQ((reasons[{8, 0}]), FinishReason::kLength);
  EXPECT_EQ(engine.stats().used_blocks, 0);
  EXPECT_EQ(engine.stats().finished_requests, 4);
}

TEST(EngineOutputs, AllAreTakenOrNone) {
  EngineCore engine(Sched(), Kv(/*num_blocks=*/3), std::make_unique<FakeExecutor>(CountUp), Letters());
  auto family = Family(5, 2, {0}, 2);
  auto big = std::make_shared<Request>(*family[1]);
  big->max_tokens = 50;
  family[1] = big;
  EXPECT_EQ(engine.AddAll(std::move(family)).code(), StatusCode::kInvalidArgument);
  engine.Shutdown();
  EXPECT_TRUE(engine.Drain(milliseconds(0)).empty());
  EXPECT_EQ(engine.AddAll(Family(5, 2, {0}, 2)).code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace fastllm
