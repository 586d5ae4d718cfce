// Overlapped scheduling: step N+1 is planned before the result of step N is known.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/base/check.h"
#include "core/sched/scheduler.h"
#include "sched_fixture.h"

namespace fastllm {
namespace {

class OverlapTest : public InFlightTest {
 protected:
  const StepPlan& Last() const { return in_flight_.back(); }
};

TEST_F(OverlapTest, ADecodeIsPlannedWhileItsTokenIsInFlight) {
  Add(1, 6, 4);
  EXPECT_EQ(Plan(), "1:6*");
  EXPECT_EQ(Plan(), "1:1*");
  EXPECT_TRUE(Last().added.empty());  // the row carries no token: the executor has it
  EXPECT_EQ(Last().diffs[0].num_computed_tokens, 6);
  EXPECT_EQ(Plan(), "");  // two steps are in flight
  EXPECT_EQ(Complete().size(), 1u);
  EXPECT_EQ(Plan(), "1:1*");
  EXPECT_EQ(Last().diffs[0].num_computed_tokens, 7);
  RunAll();
  EXPECT_EQ(outputs_[1], Model(1, 6, 4));
  EXPECT_EQ(updates_[1].finish_reason, FinishReason::kLength);
  EXPECT_EQ(scheduler().stats().scheduled_tokens, 6 + 3);
}

TEST_F(OverlapTest, ChunksAndDecodesOfOthersGoOn) {
  sched_.max_num_batched_tokens = 10;
  Add(1, 6);
  Add(2, 9);
  EXPECT_EQ(Plan(), "1:6* 2:4");
  EXPECT_EQ(Plan(), "1:1* 2:5*");
  EXPECT_EQ(Complete().size(), 1u);
  EXPECT_EQ(Plan(), "1:1* 2:1*");
  EXPECT_EQ(Complete().size(), 2u);
}

TEST_F(OverlapTest, WithoutTheSwitchOneStepIsInFlight) {
  sched_.async_scheduling = false;
  Add(1, 6, 4);
  EXPECT_EQ(scheduler().max_in_flight(), 1);
  EXPECT_EQ(Plan(), "1:6*");
  EXPECT_EQ(Plan(), "");
  Complete();
  EXPECT_EQ(Plan(), "1:1*");
  RunAll();
  EXPECT_EQ(outputs_[1], Model(1, 6, 4));
}

TEST_F(OverlapTest, NoStepPastMaxTokens) {
  Add(1, 5, 1);
  Add(2, 5, 2);
  Add(3, 5, 3);
  EXPECT_EQ(Plan(), "1:5* 2:5* 3:5*");
  EXPECT_EQ(Plan(), "2:1* 3:1*");
  Complete();
  EXPECT_EQ(Plan(), "3:1*");
  Complete();
  EXPECT_EQ(Plan(), "");
  EXPECT_TRUE(scheduler().HasWork());  // 3 waits for its last token
  RunAll();
  EXPECT_EQ(scheduler().stats().scheduled_tokens, 15 + 3);
  for (RequestId id = 1; id <= 3; ++id) {
    EXPECT_EQ(outputs_[id], Model(id, 5, static_cast<int32_t>(id)));
    EXPECT_EQ(updates_[id].finish_reason, FinishReason::kLength);
  }
}

TEST_F(OverlapTest, NoStepPastMaxModelLen) {
  sched_.max_model_len = 8;
  Add(1, 6, 100);
  EXPECT_EQ(Plan(), "1:6*");
  EXPECT_EQ(Plan(), "1:1*");  // makes token 8
  Complete();
  EXPECT_EQ(Plan(), "");
  Complete();
  EXPECT_EQ(outputs_[1], Model(1, 6, 2));
  EXPECT_EQ(updates_[1].finish_reason, FinishReason::kLength);
  EXPECT_FALSE(scheduler().HasWork());
}

// Request 1 stops by its second token while a row behind it is in flight.
TEST_F(OverlapTest, ARowBehindAStopHasNoEffect) {
  auto request = Make(1, Range(6, 1000));
  request->sampling.stop_token_ids = {Model(1, 6, 2)[1]};
  ASSERT_TRUE(scheduler().Add(request).ok());
  EXPECT_EQ(Plan(), "1:6*");
  EXPECT_EQ(Plan(), "1:1*");
  Complete();
  EXPECT_EQ(Plan(), "1:1*");
  EXPECT_EQ(Complete()[0].finish_reason, FinishReason::kStop);  // found with the third row in flight
  EXPECT_EQ(scheduler().stats().used_blocks, 0);
  EXPECT_FALSE(scheduler().HasWork());
  Add(2, 30, 3);
  EXPECT_EQ(Plan(), "2:30*");  // takes the blocks that the third row still writes; plans run in order
  EXPECT_EQ(Last().removed, (std::vector<RequestId>{1}));
  EXPECT_TRUE(Complete().empty());
  RunAll();
  EXPECT_EQ(outputs_[1], Model(1, 6, 2));
  EXPECT_EQ(outputs_[2], Model(2, 30, 3));
  EXPECT_EQ(executor_->num_sequences(), 1u);  // 2, told with the next plan
}

TEST_F(OverlapTest, MinTokensHoldsAcrossStepsInFlight) {
  auto request = Make(1, Range(6, 1000), 8);
  const std::vector<TokenId> tokens = Model(1, 6, 8);
  request->sampling.stop_token_ids = {tokens[0], tokens[1], tokens[4]};
  request->sampling.min_tokens = 3;
  ASSERT_TRUE(scheduler().Add(request).ok());
  RunAll();
  EXPECT_EQ(outputs_[1], Model(1, 6, 5));
  EXPECT_EQ(updates_[1].finish_reason, FinishReason::kStop);
}

TEST_F(OverlapTest, AnAbortDropsTheTokensInFlight) {
  Add(1, 6);
  EXPECT_EQ(Plan(), "1:6*");
  EXPECT_EQ(Plan(), "1:1*");
  EXPECT_TRUE(scheduler().Finish(1));
  EXPECT_EQ(scheduler().stats().used_blocks, 0);
  EXPECT_TRUE(Complete().empty());
  EXPECT_TRUE(Complete().empty());
  EXPECT_TRUE(outputs_[1].empty());
}

TEST_F(OverlapTest, AnIdInUseAgainDoesNotGetTheOldResult) {
  Add(1, 4);
  EXPECT_EQ(Plan(), "1:4*");
  scheduler().Finish(1);
  ASSERT_TRUE(scheduler().Add(Make(1, Range(7, 9000), 2)).ok());
  EXPECT_EQ(Plan(), "1:7*");
  EXPECT_TRUE(Complete().empty());
  EXPECT_EQ(Complete().size(), 1u);
  RunAll();
  EXPECT_EQ(outputs_[1], FakeOutput(*Make(1, Range(7, 9000)), kFixtureVocab, 2));
}

TEST_F(OverlapTest, APreemptedSequenceGetsItsTokensInFlightAndResumesBehindThem) {
  kv_.num_blocks = 6;  // 5 blocks of 4
  kv_.enable_prefix_caching = false;
  Add(1, 9, 4);  // 3 blocks
  Add(2, 7, 5);  // 2 blocks, and a third for its second decode
  EXPECT_EQ(Plan(), "1:9* 2:7*");
  EXPECT_EQ(Plan(), "1:1* 2:1*");
  Complete();
  EXPECT_EQ(Plan(), "1:1*");  // 2 has a token in flight and no block
  EXPECT_EQ(Last().removed, (std::vector<RequestId>{2}));
  EXPECT_EQ(scheduler().stats().preemptions, 1);
  EXPECT_EQ(outputs_[2].size(), 1u);
  EXPECT_EQ(Complete().size(), 2u);  // its token arrives all the same
  EXPECT_EQ(outputs_[2].size(), 2u);
  EXPECT_EQ(Plan(), "1:1*");  // no room for 2 yet
  Complete();
  Complete();  // 1 ends
  EXPECT_EQ(Plan(), "2:9*");
  EXPECT_EQ(Last().added[0].tokens.size(), 9u);
  RunAll();
  EXPECT_EQ(outputs_[1], Model(1, 9, 4));
  EXPECT_EQ(outputs_[2], Model(2, 7, 5));
}

TEST_F(OverlapTest, APreemptedSequenceMayEndByItsTokenInFlight) {
  kv_.num_blocks = 6;
  kv_.enable_prefix_caching = false;
  Add(1, 9, 4);
  auto request = Make(2, Range(7, 2000));
  request->sampling.stop_token_ids = {Model(2, 7, 2)[1]};
  request->max_tokens = 5;
  ASSERT_TRUE(scheduler().Add(request).ok());
  Plan();
  Plan();
  Complete();
  EXPECT_EQ(Plan(), "1:1*");
  EXPECT_EQ(scheduler().stats().waiting, 1);
  Complete();
  EXPECT_EQ(updates_[2].finish_reason, FinishReason::kStop);
  EXPECT_EQ(scheduler().stats().waiting, 0);
  RunAll();
  EXPECT_EQ(scheduler().stats().used_blocks, 0);
}

// 1 sits out by its length and 2 finds no block: nothing to plan, and 2 must not resume before its token is here,
// although what it knows would fit.
TEST_F(OverlapTest, NoResumptionWhileATokenIsInFlight) {
  kv_.num_blocks = 6;
  kv_.enable_prefix_caching = false;
  Add(1, 9, 2);
  Add(2, 7, 5);
  EXPECT_EQ(Plan(), "1:9* 2:7*");
  EXPECT_EQ(Plan(), "1:1* 2:1*");
  Complete();
  EXPECT_EQ(Plan(), "");
  EXPECT_EQ(scheduler().stats().preemptions, 1);
  EXPECT_EQ(Plan(), "");
  Complete();
  EXPECT_EQ(Plan(), "2:9*");
  RunAll();
  EXPECT_EQ(outputs_[2], Model(2, 7, 5));
}

// A block is cached only when all its tokens are known, and what a stopped sequence computed stays cached.
TEST_F(OverlapTest, OnlyKnownTokensAreCached) {
  Add(1, 7, 3);
  Plan();  // 7 tokens: one full block
  Plan();  // position 7, whose token is in flight, fills the second block
  std::vector<TokenId> tokens = Range(7, 1000);
  tokens.push_back(Model(1, 7, 1)[0]);
  tokens.push_back(42);
  ASSERT_TRUE(scheduler().Add(Make(2, tokens, 1)).ok());
  Complete();
  EXPECT_EQ(Plan(), "1:1* 2:1*");  // by now it is known: a hit of two blocks, one of them still in flight
  EXPECT_EQ(Last().added[0].num_computed_tokens, 8);
  RunAll();
  EXPECT_EQ(outputs_[1], Model(1, 7, 3));
  EXPECT_EQ(outputs_[2], FakeOutput(*Make(2, tokens), kFixtureVocab, 1));
}

TEST_F(OverlapTest, ResultsComeInPlanOrder) {
  Add(1, 6);
  const StepPlan first = scheduler().Schedule();
  const StepPlan second = scheduler().Schedule();
  EXPECT_THROW(scheduler().Update(second, {second.step_id, Status::Ok(), {{1, {5}}}}), InternalError);
  scheduler().Update(first, {first.step_id, Status::Ok(), {{1, {5}}}});
  EXPECT_THROW(scheduler().Update(first, {first.step_id, Status::Ok(), {{1, {5}}}}), InternalError);
}

}  // namespace
}  // namespace fastllm
