// Policies: priority, the share of long prompts, watermark, bounded queue, deadlines, lookups of a blocked head.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "alloc_counter.h"
#include "core/sched/scheduler.h"
#include "sched_fixture.h"

namespace fastllm {
namespace {

class PolicyTest : public SchedulerTest {
 protected:
  Status AddWith(RequestId id, int32_t prompt, int32_t priority, int64_t arrival_ms, int32_t max_tokens = 100) {
    auto request = Make(id, Range(prompt, static_cast<TokenId>(id) * 1000), max_tokens);
    request->priority = priority;
    request->arrival_ns = arrival_ms * 1000000;
    return scheduler().Add(request);
  }
  std::vector<TokenId> Model(RequestId id, int32_t prompt, int32_t count) {
    return FakeOutput(*Make(id, Range(prompt, static_cast<TokenId>(id) * 1000)), kFixtureVocab, count);
  }
  // Prompt and `count` tokens of output.
  std::vector<TokenId> Known(RequestId id, int32_t prompt, int32_t count) {
    std::vector<TokenId> tokens = Range(prompt, static_cast<TokenId>(id) * 1000);
    const std::vector<TokenId> output = Model(id, prompt, count);
    tokens.insert(tokens.end(), output.begin(), output.end());
    return tokens;
  }
  static std::vector<RequestId> Ids(const std::vector<ExpiredRequest>& expired) {
    std::vector<RequestId> ids;
    for (const ExpiredRequest& e : expired) ids.push_back(e.id);
    return ids;
  }
};

TEST_F(PolicyTest, FcfsDoesNotLookAtPriorities) {
  sched_.max_num_seqs = 1;
  ASSERT_TRUE(AddWith(1, 4, 5, 30, 1).ok());
  ASSERT_TRUE(AddWith(2, 4, 1, 20, 1).ok());
  EXPECT_EQ(Rows(Step()), "1:4*");
  EXPECT_EQ(Rows(Step()), "2:4*");
}

TEST_F(PolicyTest, PriorityThenArrivalThenId) {
  sched_.policy = SchedulingPolicy::kPriority;
  sched_.max_num_seqs = 1;
  ASSERT_TRUE(AddWith(1, 4, 2, 10, 1).ok());
  ASSERT_TRUE(AddWith(2, 4, 1, 40, 1).ok());
  ASSERT_TRUE(AddWith(3, 4, 1, 30, 1).ok());
  ASSERT_TRUE(AddWith(5, 4, 1, 30, 1).ok());
  ASSERT_TRUE(AddWith(4, 4, 1, 30, 1).ok());
  ASSERT_TRUE(AddWith(6, 4, -7, 99, 1).ok());
  std::string order;
  while (scheduler().HasWork()) order += Rows(Step()) + " ";
  EXPECT_EQ(order, "6:4* 3:4* 4:4* 5:4* 2:4* 1:4* ");
}

// Blocks of 4, 5 in all. The first to need a block takes it from the lowest priority, whoever came first.
TEST_F(PolicyTest, TheVictimIsTheLowestPriority) {
  sched_.policy = SchedulingPolicy::kPriority;
  kv_.num_blocks = 6;
  kv_.enable_prefix_caching = false;
  ASSERT_TRUE(AddWith(1, 7, 9, 10, 6).ok());
  EXPECT_EQ(Rows(Step()), "1:7*");  // 2 blocks
  ASSERT_TRUE(AddWith(2, 12, 0, 20, 6).ok());
  EXPECT_EQ(Rows(Step()), "1:1* 2:12*");  // 2 + 3 blocks
  const StepPlan plan = Step();           // 1 is first in line, finds no block and is the lowest itself
  EXPECT_EQ(Rows(plan), "2:1*");
  EXPECT_EQ(plan.removed, (std::vector<RequestId>{1}));
  while (scheduler().HasWork()) Step();
  EXPECT_EQ(outputs_[1], Model(1, 7, 6));
  EXPECT_EQ(outputs_[2], Model(2, 12, 6));
  EXPECT_EQ(scheduler().stats().used_blocks, 0);
}

// 1, the lowest, is planned first and takes the last two blocks; then 2 needs one.
TEST_F(PolicyTest, AVictimThatIsPlannedGivesItsTokensAndItsNewlyCachedBlocksBack) {
  sched_.policy = SchedulingPolicy::kPriority;
  sched_.max_num_batched_tokens = 12;
  sched_.long_prefill_token_threshold = 8;
  kv_.num_blocks = 9;  // 8 of 4
  ASSERT_TRUE(AddWith(1, 28, 9, 10, 5).ok());
  EXPECT_EQ(Rows(Step()), "1:12");
  ASSERT_TRUE(AddWith(2, 4, 0, 20, 10).ok());
  EXPECT_EQ(Rows(Step()), "1:8 2:4*");  // 5 + 1 blocks
  EXPECT_EQ(scheduler().CountCachedTokens(Known(1, 28, 1), {}), 20);
  const StepPlan plan = Step();
  EXPECT_EQ(Rows(plan), "2:1*");
  EXPECT_EQ(plan.diffs.size(), 1u);
  EXPECT_EQ(plan.total_tokens, 1);
  EXPECT_EQ(plan.removed, (std::vector<RequestId>{1}));
  EXPECT_EQ(scheduler().CountCachedTokens(Known(1, 28, 1), {}), 20);  // not the two that nobody computes now
  while (scheduler().HasWork()) Step();
  EXPECT_EQ(outputs_[1], Model(1, 28, 5));
  EXPECT_EQ(outputs_[2], Model(2, 4, 10));
  EXPECT_EQ(scheduler().stats().used_blocks, 0);
}

TEST_F(PolicyTest, NoPreemptionWhileThereIsRoom) {
  sched_.policy = SchedulingPolicy::kPriority;
  for (RequestId id = 1; id <= 6; ++id) ASSERT_TRUE(AddWith(id, 9, static_cast<int32_t>(id % 3), 10, 12).ok());
  while (scheduler().HasWork()) Step();
  EXPECT_EQ(scheduler().stats().preemptions, 0);
  for (RequestId id = 1; id <= 6; ++id) EXPECT_EQ(outputs_[id], Model(id, 9, 12));
}

TEST_F(PolicyTest, ALongPromptLeavesOthersTheirShare) {
  sched_.long_prefill_fair_share = true;
  sched_.max_num_batched_tokens = 40;
  Add(1, 200);
  EXPECT_EQ(Rows(Step()), "1:40");  // alone: all of the step
  Add(2, 6);
  EXPECT_EQ(Rows(Step()), "1:34 2:6*");  // 20 each at first; what 2 does not need goes to 1
  Add(3, 100);
  EXPECT_EQ(Rows(Step()), "1:26 2:1* 3:13");  // 13 each, and 13 that are left to the first in line
  Add(4, 7);
  Add(5, 7);
  Add(6, 7);
  EXPECT_EQ(Rows(Step()), "1:10 2:1* 3:10 4:7* 5:7* 6:5");  // a quarter at least
}

TEST_F(PolicyTest, TheShareIsNoCapAndTheThresholdIs) {
  sched_.long_prefill_fair_share = true;
  sched_.long_prefill_token_threshold = 25;
  sched_.max_num_batched_tokens = 40;
  Add(1, 60);
  Add(2, 4);
  EXPECT_EQ(Rows(Step()), "1:25 2:4*");  // 20 + 5
  EXPECT_EQ(Rows(Step()), "1:25 2:1*");
  EXPECT_EQ(Rows(Step()), "1:10* 2:1*");
  EXPECT_EQ(outputs_[1], Model(1, 60, 1));
}

TEST_F(PolicyTest, PromptsBesideDecodesHaveABudgetOfTheirOwn) {
  sched_.max_num_mixed_prefill_tokens = 10;
  Add(1, 30);
  Add(2, 20);
  EXPECT_EQ(Rows(Step()), "1:30* 2:20*");  // nobody decodes: all of the step
  Add(3, 21);
  Add(4, 3);
  EXPECT_EQ(Rows(Step()), "1:1* 2:1* 3:10");
  EXPECT_EQ(Rows(Step()), "1:1* 2:1* 3:10");
  EXPECT_EQ(Rows(Step()), "1:1* 2:1* 3:1* 4:3*");  // a last token is no more than a decode
  EXPECT_EQ(Rows(Step()), "1:1* 2:1* 3:1* 4:1*");
  EXPECT_EQ(outputs_[3], Model(3, 21, 2));
}

// One token of it is left to compute: no more than a decode. The order of the others is kept.
TEST_F(PolicyTest, APromptThatIsCachedWholeNeedsNoBudgetBesideDecodes) {
  sched_.max_num_mixed_prefill_tokens = 10;
  Add(1, 12);
  EXPECT_EQ(Rows(Step()), "1:12*");
  Add(2, 30);
  ASSERT_TRUE(scheduler().Add(Make(3, Range(12, 1000))).ok());
  EXPECT_EQ(Rows(Step()), "1:1* 2:10 3:1*");
  ASSERT_TRUE(scheduler().Add(Make(4, Range(14, 1000))).ok());  // lacks two
  ASSERT_TRUE(scheduler().Add(Make(5, Range(12, 1000))).ok());
  EXPECT_EQ(Rows(Step()), "1:1* 2:10 3:1*");
  EXPECT_EQ(Rows(Step()), "1:1* 2:10* 3:1*");
  EXPECT_EQ(Rows(Step()), "1:1* 2:1* 3:1* 4:2* 5:1*");
}

TEST_F(PolicyTest, TheBudgetBesideDecodesIsSharedFairly) {
  sched_.long_prefill_fair_share = true;
  sched_.max_num_mixed_prefill_tokens = 10;
  Add(1, 4);
  EXPECT_EQ(Rows(Step()), "1:4*");
  Add(2, 30);
  Add(3, 30);
  EXPECT_EQ(Rows(Step()), "1:1* 2:7 3:3");  // 3 each, and 4 that are left to the first in line
}

TEST_F(PolicyTest, WholePromptsKnowNoBudgetBesideDecodes) {
  sched_.max_num_mixed_prefill_tokens = 10;
  sched_.enable_chunked_prefill = false;
  sched_.max_num_batched_tokens = sched_.max_model_len;  // a prompt fits whole
  Add(1, 4, 10);
  EXPECT_EQ(Rows(Step()), "1:4*");
  Add(2, 30, 10);
  EXPECT_EQ(Rows(Step()), "1:1* 2:30*");
}

// What is filled up may end a prompt and take new blocks, in an admitted row and in a known one.
TEST_F(PolicyTest, FilledUpRowsAreWhole) {
  sched_.long_prefill_fair_share = true;
  sched_.max_num_batched_tokens = 32;
  Add(1, 20, 4);
  Add(2, 2, 4);
  const StepPlan plan = Step();
  EXPECT_EQ(Rows(plan), "1:20* 2:2*");
  EXPECT_EQ(plan.added[0].block_ids[0].size(), 5u);
  Add(3, 50, 4);
  EXPECT_EQ(Rows(Step()), "1:1* 2:1* 3:30");
  EXPECT_EQ(Rows(Step()), "1:1* 2:1* 3:20*");
  while (scheduler().HasWork()) Step();
  EXPECT_EQ(outputs_[1], Model(1, 20, 4));
  EXPECT_EQ(outputs_[2], Model(2, 2, 4));
  EXPECT_EQ(outputs_[3], Model(3, 50, 4));
}

TEST_F(PolicyTest, TheWatermarkKeepsBlocksFreeNextToRunningOnes) {
  kv_.num_blocks = 11;  // 10 blocks
  sched_.watermark = 0.3f;
  Add(1, 32, 2);  // 8 blocks: more than 70%, but nothing runs
  EXPECT_EQ(Rows(Step()), "1:32*");
  Add(2, 4, 2);                     // 1 block; 2 are free, 3 must stay
  EXPECT_EQ(Rows(Step()), "1:1*");  // 1 ends
  EXPECT_EQ(Rows(Step()), "2:4*");
  Add(3, 24, 2);  // 6 of the 8 blocks that 2 leaves: too many
  Add(4, 20, 2);
  EXPECT_EQ(Rows(Step()), "2:1*");
  EXPECT_EQ(Rows(Step()), "3:24*");  // 2 has ended
  scheduler().Finish(3);
  Add(5, 5, 2);
  EXPECT_EQ(Rows(Step()), "4:20* 5:5*");  // 5 + 2 of 10: 3 stay
}

TEST_F(PolicyTest, TokensAndPreemptedSequencesOfTheQueueAreCounted) {
  sched_.max_num_seqs = 2;
  kv_.num_blocks = 5;
  Add(1, 8, 8);
  Add(2, 7, 8);
  EXPECT_EQ(scheduler().stats().queued_tokens, 15);
  Step();
  EXPECT_EQ(scheduler().stats().queued_tokens, 0);
  Step();  // 1 needs a third block and 2 has to give its two
  EXPECT_EQ(scheduler().stats().waiting, 1);
  EXPECT_EQ(scheduler().stats().waiting_preempted, 1);
  EXPECT_EQ(scheduler().stats().queued_tokens, 8);  // its prompt and one token of output
  Add(3, 4, 8);
  EXPECT_EQ(scheduler().stats().waiting, 2);
  EXPECT_EQ(scheduler().stats().waiting_preempted, 1);
  scheduler().Finish(2);
  EXPECT_EQ(scheduler().stats().waiting_preempted, 0);
  EXPECT_EQ(scheduler().stats().queued_tokens, 4);
}

TEST_F(PolicyTest, ASequenceThatDoesNotReadTheCacheComputesItsWholePrompt) {
  Add(1, 12, 1);
  Step();
  auto request = Make(2, Range(12, 1000), 1);
  request->read_prefix_cache = false;
  ASSERT_TRUE(scheduler().Add(request).ok());
  EXPECT_EQ(Rows(Step()), "2:12*");
  ASSERT_TRUE(scheduler().Add(Make(3, Range(12, 1000), 1)).ok());
  EXPECT_EQ(Rows(Step()), "3:1*");
}

TEST_F(PolicyTest, EveryExtraKeyKeepsPrefixesApart) {
  ExtraKeys lora, path, image, digest;
  lora.lora_name = "a";
  path.lora_name = "a";
  path.lora_path = "/new";
  image.media = {{"cat", 2, 3}};
  digest.embedding_digests = {"d"};
  RequestId id = 0;
  for (const char* expected : {"12*", "1*"}) {  // cold, then as each other's followers
    for (const ExtraKeys& keys : {ExtraKeys{}, lora, path, image, digest}) {
      auto request = Make(++id, Range(12, 1000), 1);
      request->extra_keys = keys;
      ASSERT_TRUE(scheduler().Add(request).ok());
      const StepPlan plan = scheduler().Schedule();
      EXPECT_EQ(Rows(plan), std::to_string(id) + ":" + expected);
      scheduler().Update(plan, {plan.step_id, {}, {{id, {7}}}});
    }
  }
}

TEST_F(PolicyTest, RequestsRunOutOfTime) {
  sched_.max_num_seqs = 1;
  sched_.request_timeout_ms = 1000;
  auto quick = Make(1, Range(4, 1000));
  quick->timeout_ms = 300;
  ASSERT_TRUE(scheduler().Add(quick).ok());  // at 5000
  ASSERT_TRUE(AddWith(2, 4, 0, 4500).ok());  // came 500 ms ago
  auto patient = Make(3, Range(4, 3000));
  patient->max_queue_ms = 700;
  ASSERT_TRUE(scheduler().Add(patient).ok());
  EXPECT_TRUE(scheduler().Expire().empty());
  EXPECT_EQ(Rows(Step()), "1:4*");
  now_ms_ = 5299;
  EXPECT_TRUE(scheduler().Expire().empty());
  now_ms_ = 5301;
  const std::vector<ExpiredRequest> expired = scheduler().Expire();
  ASSERT_EQ(Ids(expired), (std::vector<RequestId>{1}));
  EXPECT_EQ(expired[0].reason, "not finished after 301 ms (limit 300 ms)");
  EXPECT_EQ(scheduler().stats().used_blocks, 0);
  EXPECT_EQ(Rows(Step()), "2:4*");
  now_ms_ = 5500;
  EXPECT_EQ(Ids(scheduler().Expire()), (std::vector<RequestId>{2}));
  now_ms_ = 5700;
  EXPECT_EQ(scheduler().Expire()[0].reason, "still queued after 700 ms (limit 700 ms)");
  EXPECT_FALSE(scheduler().HasWork());
}

TEST_F(PolicyTest, TheQueueLimitEndsWithTheFirstStepAndIdsInUseAgainKeepTheirTime) {
  sched_.max_queue_ms = 100;
  Add(1, 4, 50);
  Add(2, 4, 50);
  Step();
  scheduler().Finish(2);
  now_ms_ = 5050;
  sched_.max_num_seqs = 1;
  Add(2, 4, 50);  // 2's first deadline was 5100
  now_ms_ = 5120;
  EXPECT_TRUE(scheduler().Expire().empty());
  now_ms_ = 5150;
  EXPECT_EQ(Ids(scheduler().Expire()), (std::vector<RequestId>{2}));
  EXPECT_EQ(scheduler().stats().running, 1);
}

TEST_F(PolicyTest, ABlockedHeadIsLookedUpOnlyWhenItMayFit) {
  kv_.num_blocks = 11;
  Add(1, 23, 18);  // 6 blocks
  Step();
  Add(2, 24, 4);
  EXPECT_EQ(Rows(Step()), "1:1*");
  const int64_t before = scheduler().stats().prefix_lookups;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Rows(Step()), "1:1*");
  EXPECT_EQ(scheduler().stats().prefix_lookups, before);
  scheduler().Finish(1);
  EXPECT_EQ(Rows(Step()), "2:24*");
  EXPECT_EQ(scheduler().stats().prefix_lookups, before + 1);
}

// 2 wants the prefix that 1 computes: it fits as soon as enough of that is cached, with no block given back.
TEST_F(PolicyTest, ABlockedHeadFitsWhenItsPrefixIsCached) {
  kv_.num_blocks = 13;  // 12 blocks
  sched_.max_num_batched_tokens = 8;
  ASSERT_TRUE(scheduler().Add(Make(1, Range(33, 7), 4)).ok());  // 9 blocks, 2 in each step
  ASSERT_TRUE(scheduler().Add(Make(2, Range(34, 7), 4)).ok());
  for (int i = 0; i < 4; ++i) EXPECT_EQ(Rows(Step()), "1:8");
  EXPECT_EQ(Rows(Step()), "1:1* 2:2*");
}

// 2 uses up what prompts get beside the decodes of 1. 3, which lacks 30 tokens, is looked up once; 4 lacks the last 12
// of what 2 computes.
TEST_F(PolicyTest, AHeadWithoutBudgetIsLookedUpOnlyWhenItMayLackASingleToken) {
  sched_.max_num_mixed_prefill_tokens = 4;
  Add(1, 4);
  EXPECT_EQ(Rows(Step()), "1:4*");
  Add(2, 40, 1);
  Add(3, 30);
  EXPECT_EQ(Rows(Step()), "1:1* 2:4");
  int64_t before = scheduler().stats().prefix_lookups;
  for (int i = 0; i < 4; ++i) EXPECT_EQ(Rows(Step()), "1:1* 2:4");
  EXPECT_EQ(scheduler().stats().prefix_lookups, before);
  scheduler().Finish(3);
  ASSERT_TRUE(scheduler().Add(Make(4, Range(32, 2000))).ok());  // 20 are cached, and 4 more in this step
  EXPECT_EQ(Rows(Step()), "1:1* 2:4");
  before = scheduler().stats().prefix_lookups;
  EXPECT_EQ(Rows(Step()), "1:1* 2:4");
  EXPECT_EQ(scheduler().stats().prefix_lookups, before);
  EXPECT_EQ(Rows(Step()), "1:1* 2:4 4:1*");
  EXPECT_EQ(scheduler().stats().prefix_lookups, before + 1);
}

// What it has found out about its tokens says nothing of a step with a budget.
TEST_F(PolicyTest, AHeadWithoutBudgetIsAdmittedWhenThereIsOne) {
  sched_.max_num_mixed_prefill_tokens = 4;
  Add(1, 4);
  EXPECT_EQ(Rows(Step()), "1:4*");
  Add(2, 10, 1);
  Add(3, 30);
  EXPECT_EQ(Rows(Step()), "1:1* 2:4");
  EXPECT_EQ(Rows(Step()), "1:1* 2:4");
  EXPECT_EQ(Rows(Step()), "1:1* 2:2* 3:2");
}

TEST_F(PolicyTest, DecodingAllocatesNothing) {
  sched_.max_num_batched_tokens = 512;
  kv_.num_blocks = 1000;
  for (RequestId id = 1; id <= 8; ++id) Add(id, 10, 200);
  StepPlan plan;
  StepResult result;
  std::vector<SequenceUpdate> updates;
  int64_t allocations = 0;
  for (int i = 0; i < 150; ++i) {
    const AllocCounter counter;
    scheduler().ScheduleInto(&plan);
    const int64_t planned = counter.count();
    result.step_id = plan.step_id;
    result.rows.clear();
    for (const ScheduledRow& row : plan.rows) result.rows.push_back({row.id, {7}});
    const int64_t answered = counter.count();
    scheduler().UpdateInto(plan, result, &updates);
    if (i >= 20) allocations += planned + (counter.count() - answered);
    ASSERT_EQ(updates.size(), 8u);
  }
  EXPECT_EQ(allocations, 0);
}

}  // namespace
}  // namespace fastllm
