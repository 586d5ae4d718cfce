#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "core/sched/scheduler.h"
#include "sched_fixture.h"

namespace fastllm {
namespace {

using Tokens = std::vector<TokenId>;
using Blocks = std::vector<BlockId>;

TEST_F(SchedulerTest, NothingToDo) {
  EXPECT_FALSE(scheduler().HasWork());
  EXPECT_TRUE(scheduler().Schedule().rows.empty());
}

TEST_F(SchedulerTest, PrefillThenDecodeThenLength) {
  Add(1, 5, 3);
  StepPlan plan = Step();
  EXPECT_EQ(Rows(plan), "1:5*");
  ASSERT_EQ(plan.added.size(), 1u);
  EXPECT_EQ(plan.added[0].tokens, Range(5, 1000));
  EXPECT_EQ(plan.added[0].num_prompt_tokens, 5);
  EXPECT_EQ(plan.added[0].block_ids, (std::vector<Blocks>{{1, 2}}));
  plan = Step();
  EXPECT_EQ(Rows(plan), "1:1*");
  EXPECT_TRUE(plan.added.empty());
  ASSERT_EQ(plan.diffs.size(), 1u);
  EXPECT_EQ(plan.diffs[0].num_computed_tokens, 5);
  EXPECT_EQ(plan.diffs[0].new_block_ids, (std::vector<Blocks>{}));
  EXPECT_EQ(updates_[1].finish_reason, FinishReason::kNone);
  Step();
  EXPECT_EQ(updates_[1].finish_reason, FinishReason::kLength);
  EXPECT_EQ(outputs_[1], FakeOutput(*Make(1, Range(5, 1000)), kFixtureVocab, 3));
  EXPECT_FALSE(scheduler().HasWork());
  EXPECT_EQ(scheduler().stats().used_blocks, 0);
  EXPECT_EQ(scheduler().stats().scheduled_tokens, 7);
}

TEST_F(SchedulerTest, ANewBlockIsSentWhenItIsNeeded) {
  Add(1, 4);
  EXPECT_EQ(Step().added[0].block_ids, (std::vector<Blocks>{{1}}));
  EXPECT_EQ(Step().diffs[0].new_block_ids, (std::vector<Blocks>{{2}}));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Step().diffs[0].new_block_ids, (std::vector<Blocks>{}));
  EXPECT_EQ(Step().diffs[0].new_block_ids, (std::vector<Blocks>{{3}}));
}

TEST_F(SchedulerTest, ChunkedPrefillIsMixedWithDecodes) {
  sched_.max_num_batched_tokens = 10;
  Add(1, 4);
  EXPECT_EQ(Rows(Step()), "1:4*");
  Add(2, 25);
  Add(3, 3);
  EXPECT_EQ(Rows(Step()), "1:1* 2:9");
  EXPECT_EQ(Rows(Step()), "1:1* 2:9");
  EXPECT_EQ(Rows(Step()), "1:1* 2:7* 3:2");
  EXPECT_EQ(Rows(Step()), "1:1* 2:1* 3:1*");
}

TEST_F(SchedulerTest, ChunkingOffAdmitsOnlyWholePromptsInOrder) {
  sched_.max_num_batched_tokens = 20;
  sched_.enable_chunked_prefill = false;
  sched_.long_prefill_token_threshold = 2;  // would chunk, so it does not count
  Add(1, 12, 9);
  Add(2, 12, 9);
  Add(3, 2, 9);
  EXPECT_EQ(Rows(Step()), "1:12*");
  EXPECT_EQ(Rows(Step()), "1:1* 2:12* 3:2*");
  const Status status = scheduler().Add(Make(4, Range(12, 4000), 10));
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("max_num_batched_tokens = 20"), std::string::npos) << status.message();
}

TEST_F(SchedulerTest, LongPrefillThresholdCapsUnlessAlone) {
  sched_.long_prefill_token_threshold = 6;
  Add(1, 40);
  EXPECT_EQ(Rows(Step()), "1:40*");
  Add(2, 14);
  EXPECT_EQ(Rows(Step()), "1:1* 2:6");
  EXPECT_EQ(Rows(Step()), "1:1* 2:6");
  scheduler().Finish(1);
  Add(3, 8);
  EXPECT_EQ(Rows(Step()), "2:2* 3:6");
  scheduler().Finish(2);
  EXPECT_EQ(Rows(Step()), "3:2*");
}

TEST_F(SchedulerTest, MaxNumSeqsLimitsTheRunning) {
  sched_.max_num_seqs = 2;
  for (RequestId id = 1; id <= 3; ++id) Add(id, 3, 2);
  EXPECT_EQ(Rows(Step()), "1:3* 2:3*");
  EXPECT_EQ(scheduler().stats().running, 2);
  EXPECT_EQ(scheduler().stats().waiting, 1);
  EXPECT_EQ(Rows(Step()), "1:1* 2:1*");
  EXPECT_EQ(Rows(Step()), "3:3*");
}

TEST_F(SchedulerTest, PrefixHitSkipsComputedTokens) {
  const Tokens shared = Range(12, 7);
  ASSERT_TRUE(scheduler().Add(Make(1, shared)).ok());
  EXPECT_EQ(Rows(Step()), "1:12*");
  ASSERT_TRUE(scheduler().Add(Make(2, shared)).ok());
  Tokens longer = shared;
  longer.push_back(3);
  ASSERT_TRUE(scheduler().Add(Make(3, longer)).ok());
  const StepPlan plan = Step();
  EXPECT_EQ(Rows(plan), "1:1* 2:1* 3:1*");  // 2: all is cached, and its last token is computed again
  EXPECT_EQ(plan.added[0].num_computed_tokens, 11);
  EXPECT_TRUE(plan.added[0].repeats_last);
  EXPECT_EQ(plan.added[0].block_ids[0].size(), 3u);
  EXPECT_EQ(plan.added[1].num_computed_tokens, 12);
  EXPECT_FALSE(plan.added[1].repeats_last);
  EXPECT_EQ(updates_[2].num_cached_tokens, 11);
  EXPECT_EQ(updates_[3].num_cached_tokens, 12);
  EXPECT_EQ(scheduler().stats().prefix_query_tokens, 12 + 12 + 13);
  EXPECT_EQ(scheduler().stats().prefix_hit_tokens, 11 + 12);
}

TEST_F(SchedulerTest, SameStepSharing) {
  const Tokens shared = Range(12, 7);
  for (RequestId id = 1; id <= 3; ++id) ASSERT_TRUE(scheduler().Add(Make(id, shared)).ok());
  const StepPlan plan = Step();  // the fake executor checks that 2 and 3 read 1's KV right
  EXPECT_EQ(Rows(plan), "1:12* 2:1* 3:1*");
  EXPECT_EQ(plan.added[1].block_ids, plan.added[0].block_ids);
  EXPECT_EQ(scheduler().stats().used_blocks, 3);
  // What follows is each one's own.
  const StepPlan next = Step();
  EXPECT_EQ(Rows(next), "1:1* 2:1* 3:1*");
  EXPECT_EQ(scheduler().stats().used_blocks, 6);
  EXPECT_NE(next.diffs[0].new_block_ids, next.diffs[1].new_block_ids);
}

// Preempted before its last token was computed; one with the same tokens for a prompt has computed it when it resumes.
TEST_F(SchedulerTest, APreemptedSequenceRepeatsItsLastTokenWhereAllIsCached) {
  kv_.num_blocks = 6;  // 5 of 4
  sched_.policy = SchedulingPolicy::kPriority;
  Add(1, 5, 5);
  const auto low = Make(2, Range(8, 2000), 8);
  low->priority = 5;
  ASSERT_TRUE(scheduler().Add(low).ok());
  EXPECT_EQ(Rows(Step()), "1:5* 2:8*");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Rows(Step()), "1:1* 2:1*");
  EXPECT_EQ(Rows(Step()), "1:1*");  // takes the third block of 2
  EXPECT_EQ(scheduler().stats().preemptions, 1);
  Tokens known = Range(8, 2000);
  known.insert(known.end(), outputs_[2].begin(), outputs_[2].end());
  ASSERT_EQ(known.size(), 12u);
  ASSERT_TRUE(scheduler().Add(Make(3, known, 1)).ok());
  const StepPlan plan = Step();
  EXPECT_EQ(Rows(plan), "3:4* 2:1*");
  EXPECT_FALSE(plan.added[0].repeats_last);
  EXPECT_TRUE(plan.added[1].repeats_last);
  while (scheduler().HasWork()) ASSERT_FALSE(Step().rows.empty());
  EXPECT_EQ(outputs_[2], FakeOutput(*low, kFixtureVocab, 8));
  EXPECT_EQ(executor_->num_repeats(), 1);
}

TEST_F(SchedulerTest, SaltSeparatesRequests) {
  for (RequestId id = 1; id <= 3; ++id) {
    auto request = Make(id, Range(12, 7));
    request->extra_keys.cache_salt = std::string(1, id == 3 ? 'b' : 'a');
    scheduler();
    executor_->SetSalt(id, request->extra_keys.cache_salt);
    ASSERT_TRUE(scheduler().Add(request).ok());
  }
  EXPECT_EQ(Rows(Step()), "1:12* 2:1* 3:12*");
}

TEST_F(SchedulerTest, AdmissionWaitsUntilTheWholePromptFits) {
  kv_.num_blocks = 11;  // 10 blocks of 4
  sched_.max_num_batched_tokens = 12;
  Add(1, 24, 4);  // 6 blocks, two of them reserved after the first step
  Add(2, 17, 4);  // 5 blocks
  Add(3, 4, 4);   // would fit, but order is kept
  EXPECT_EQ(Rows(Step()), "1:12");
  EXPECT_EQ(Rows(Step()), "1:12*");
  EXPECT_EQ(Rows(Step()), "1:1*");
  EXPECT_EQ(Rows(Step()), "1:1*");
  EXPECT_EQ(Rows(Step()), "1:1*");
  EXPECT_EQ(Rows(Step()), "2:12");  // 1 is done
  EXPECT_EQ(Rows(Step()), "2:5* 3:4*");
}

TEST_F(SchedulerTest, PreemptsTheLastRunningAndKeepsItsOutput) {
  kv_.num_blocks = 7;  // 6 blocks of 4
  kv_.enable_prefix_caching = false;
  Add(1, 8, 9);
  Add(2, 8, 9);
  EXPECT_EQ(Rows(Step()), "1:8* 2:8*");                              // 2 + 2 blocks
  for (int i = 0; i < 4; ++i) EXPECT_EQ(Rows(Step()), "1:1* 2:1*");  // 3 + 3 blocks, 12 tokens each
  Add(3, 4, 1);
  const StepPlan plan = Step();  // 1 needs a fourth block
  EXPECT_EQ(Rows(plan), "1:1*");
  EXPECT_EQ(plan.removed, (std::vector<RequestId>{2}));
  EXPECT_EQ(plan.diffs.size(), 1u);
  EXPECT_EQ(scheduler().stats().preemptions, 1);
  EXPECT_EQ(scheduler().stats().waiting, 2);
  EXPECT_EQ(outputs_[2].size(), 5u);
  // 13 tokens of 2 need four blocks and only two are free; 3 waits behind it.
  EXPECT_EQ(Rows(Step()), "1:1*");
  EXPECT_EQ(Rows(Step()), "1:1*");
  EXPECT_EQ(Rows(Step()), "1:1*");
  EXPECT_EQ(updates_[1].finish_reason, FinishReason::kLength);
  const StepPlan resumed = Step();
  EXPECT_EQ(Rows(resumed), "2:13* 3:4*");
  EXPECT_EQ(resumed.removed, (std::vector<RequestId>{1}));
  EXPECT_EQ(resumed.added[0].num_prompt_tokens, 8);
  EXPECT_EQ(resumed.added[0].tokens.size(), 13u);
  while (scheduler().HasWork()) Step();
  EXPECT_EQ(outputs_[1], FakeOutput(*Make(1, Range(8, 1000)), kFixtureVocab, 9));
  EXPECT_EQ(outputs_[2], FakeOutput(*Make(2, Range(8, 2000)), kFixtureVocab, 9));
  EXPECT_EQ(scheduler().stats().used_blocks, 0);
}

TEST_F(SchedulerTest, TheLastRunningPreemptsItself) {
  kv_.num_blocks = 6;  // 5 blocks of 4
  Add(1, 9, 3);        // 3 blocks, enough for all its tokens
  Add(2, 8, 4);        // 2 blocks, needs a third for its first decode
  EXPECT_EQ(Rows(Step()), "1:9* 2:8*");
  const StepPlan plan = Step();
  EXPECT_EQ(Rows(plan), "1:1*");
  EXPECT_EQ(plan.diffs.size(), 1u);
  EXPECT_EQ(plan.removed, (std::vector<RequestId>{2}));
  EXPECT_EQ(Rows(Step()), "1:1*");  // 2 has nine tokens, three blocks
  const StepPlan resumed = Step();
  EXPECT_EQ(Rows(resumed), "2:1*");  // its two blocks were still cached
  EXPECT_EQ(resumed.added[0].num_computed_tokens, 8);
  while (scheduler().HasWork()) Step();
  EXPECT_EQ(outputs_[2], FakeOutput(*Make(2, Range(8, 2000)), kFixtureVocab, 4));
  // Counted at the first admission only.
  EXPECT_EQ(scheduler().stats().prefix_query_tokens, 17);
  EXPECT_EQ(scheduler().stats().prefix_hit_tokens, 0);
  EXPECT_EQ(updates_[2].num_cached_tokens, 0);
}

TEST_F(SchedulerTest, SeveralVictimsKeepTheirOrder) {
  kv_.num_blocks = 9;  // 8 blocks of 4
  kv_.enable_prefix_caching = false;
  sched_.max_num_batched_tokens = 200;
  Add(1, 4, 20);
  Add(2, 8, 20);
  Add(3, 8, 20);
  Add(4, 8, 20);
  EXPECT_EQ(Rows(Step()), "1:4* 2:8* 3:8* 4:8*");  // 7 of 8 blocks
  const StepPlan plan = Step();                    // 1 takes the last one, 2 needs one: 4 goes, which gives 3 one, too
  EXPECT_EQ(Rows(plan), "1:1* 2:1* 3:1*");
  EXPECT_EQ(plan.removed, (std::vector<RequestId>{4}));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Rows(Step()), "1:1* 2:1* 3:1*");
  EXPECT_EQ(Rows(Step()), "1:1* 2:1*");  // 1: 3 blocks, 2: 4, so 3 goes
  while (scheduler().stats().running > 0 && scheduler().stats().waiting > 0) Step();
  while (scheduler().HasWork()) Step();
  for (RequestId id = 1; id <= 4; ++id) {
    const auto request = Make(id, Range(id == 1 ? 4 : 8, static_cast<TokenId>(id) * 1000));
    EXPECT_EQ(outputs_[id], FakeOutput(*request, kFixtureVocab, 20)) << id;
  }
}

TEST_F(SchedulerTest, FinishInEveryState) {
  sched_.max_num_batched_tokens = 8;
  Add(1, 4);
  Add(2, 20);
  Add(3, 4);
  EXPECT_EQ(Rows(Step()), "1:4* 2:4");
  EXPECT_TRUE(scheduler().Finish(3));  // waiting: the executor never heard of it
  EXPECT_TRUE(scheduler().Finish(2));  // in the middle of its prompt
  EXPECT_FALSE(scheduler().Finish(2));
  EXPECT_FALSE(scheduler().Finish(99));
  EXPECT_EQ(scheduler().stats().used_blocks, 1);
  EXPECT_EQ(Step().removed, (std::vector<RequestId>{2}));
  const StepPlan plan = scheduler().Schedule();
  EXPECT_EQ(Rows(plan), "1:1*");
  EXPECT_TRUE(scheduler().Finish(1));  // in flight: its result is ignored
  EXPECT_EQ(scheduler().stats().used_blocks, 0);
  EXPECT_TRUE(scheduler().Update(plan, executor_->Run(plan)).empty());
  EXPECT_FALSE(scheduler().HasWork());
  EXPECT_TRUE(scheduler().Schedule().removed.empty());  // nobody runs an empty plan, so 1 is kept for the next
  Add(4, 4);
  EXPECT_EQ(Step().removed, (std::vector<RequestId>{1}));
  EXPECT_EQ(executor_->num_sequences(), 1u);
}

TEST_F(SchedulerTest, AnIdInUseAgainDoesNotGetTheOldResult) {
  Add(1, 4);
  const StepPlan plan = scheduler().Schedule();
  scheduler().Finish(1);
  Add(1, 6);
  EXPECT_TRUE(scheduler().Update(plan, executor_->Run(plan)).empty());
  EXPECT_EQ(Rows(Step()), "1:2*");  // the first block of the old one was computed and is hit
}

TEST_F(SchedulerTest, FinishOfAPreemptedSequence) {
  kv_.num_blocks = 6;
  Add(1, 9, 3);
  Add(2, 8, 4);
  Step();
  EXPECT_EQ(Step().removed, (std::vector<RequestId>{2}));
  EXPECT_TRUE(scheduler().Finish(2));
  EXPECT_TRUE(Step().removed.empty());  // it was told already
  EXPECT_EQ(executor_->num_sequences(), 1u);
}

TEST_F(SchedulerTest, ResetPrefixCacheNeedsAnIdlePool) {
  Add(1, 12, 2);
  Step();
  EXPECT_FALSE(scheduler().ResetPrefixCache());
  Step();
  EXPECT_TRUE(scheduler().ResetPrefixCache());
  ASSERT_TRUE(scheduler().Add(Make(2, Range(12, 1000))).ok());
  EXPECT_EQ(Rows(Step()), "2:12*");
}

}  // namespace
}  // namespace fastllm
