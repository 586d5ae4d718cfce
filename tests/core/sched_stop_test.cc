// How sequences end, and what is refused.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "core/base/check.h"
#include "core/sched/scheduler.h"
#include "sched_fixture.h"

namespace fastllm {
namespace {

using Tokens = std::vector<TokenId>;

TEST_F(SchedulerTest, StopRules) {
  auto add = [&](RequestId id, auto change) {
    auto request = Make(id, {5, 6}, 4);
    request->eos_token_ids = {70, 71};
    request->sampling.stop_token_ids = {80};
    change(request.get());
    ASSERT_TRUE(scheduler().Add(request).ok());
  };
  auto nothing = [](Request*) {};
  add(1, nothing);
  std::vector<SequenceUpdate> updates = StepWith(70);
  EXPECT_EQ(updates[0].finish_reason, FinishReason::kStop);
  EXPECT_EQ(updates[0].stop_reason, StopReason());
  EXPECT_EQ(updates[0].new_tokens, (Tokens{70}));
  add(2, nothing);
  updates = StepWith(71);
  EXPECT_EQ(updates[0].finish_reason, FinishReason::kStop);
  EXPECT_EQ(updates[0].stop_reason, StopReason(71));
  add(3, nothing);
  updates = StepWith(80);
  EXPECT_EQ(updates[0].finish_reason, FinishReason::kStop);
  EXPECT_EQ(updates[0].stop_reason, StopReason(80));
  // ignore_eos takes out both of the model's ids, not the caller's.
  add(4, [](Request* r) { r->sampling.ignore_eos = true; });
  EXPECT_EQ(StepWith(70)[0].finish_reason, FinishReason::kNone);
  EXPECT_EQ(StepWith(71)[0].finish_reason, FinishReason::kNone);
  EXPECT_EQ(StepWith(80)[0].stop_reason, StopReason(80));
  // The primary id wins over the same id in stop_token_ids.
  add(5, [](Request* r) { r->sampling.stop_token_ids = {70}; });
  updates = StepWith(70);
  EXPECT_EQ(updates[0].finish_reason, FinishReason::kStop);
  EXPECT_EQ(updates[0].stop_reason, StopReason());
  // With ignore_eos an id that the caller lists still stops, with its reason.
  add(6, [](Request* r) {
    r->sampling.ignore_eos = true;
    r->sampling.stop_token_ids = {70};
  });
  EXPECT_EQ(StepWith(70)[0].stop_reason, StopReason(70));
  // A stop token at the last allowed place is a stop, not a length.
  add(7, [](Request* r) { r->max_tokens = 1; });
  EXPECT_EQ(StepWith(70)[0].finish_reason, FinishReason::kStop);
  add(8, [](Request* r) { r->max_tokens = 1; });
  EXPECT_EQ(StepWith(9)[0].finish_reason, FinishReason::kLength);
  EXPECT_EQ(scheduler().stats().used_blocks, 0);
}

TEST_F(SchedulerTest, ModelLengthEndsASequence) {
  sched_.max_model_len = 4;
  ASSERT_TRUE(scheduler().Add(Make(1, {5, 6}, 50)).ok());
  EXPECT_EQ(StepWith(9)[0].finish_reason, FinishReason::kNone);
  EXPECT_EQ(StepWith(9)[0].finish_reason, FinishReason::kLength);
}

TEST_F(SchedulerTest, MinTokensBansThroughTheSampler) {
  auto request = Make(1, {5, 6}, 9);
  request->seed = 42;
  request->eos_token_ids = {70, 71};
  request->sampling.stop_token_ids = {80, 70};
  request->sampling.min_tokens = 2;
  request->sampling.top_k = -1;
  request->sampling.temperature = 0.5f;
  request->sampling.top_p = 0.25f;
  request->sampling.min_p = 0.125f;
  ASSERT_TRUE(scheduler().Add(request).ok());
  StepPlan plan = scheduler().Schedule();
  const SamplingSpec& spec = plan.added[0].sampling;
  EXPECT_EQ(spec.banned_until_min, (Tokens{70, 71, 80}));
  EXPECT_EQ(spec.min_tokens, 2);
  EXPECT_EQ(spec.top_k, 0);
  EXPECT_EQ(spec.seed, 42u);
  EXPECT_EQ(spec.temperature, 0.5f);
  EXPECT_EQ(spec.top_p, 0.25f);
  EXPECT_EQ(spec.min_p, 0.125f);
  // Tokens 0 and 1 are covered by the ban, so they do not stop; token 2 does.
  EXPECT_EQ(scheduler().Update(plan, {plan.step_id, {}, {{1, {70}}}})[0].finish_reason, FinishReason::kNone);
  EXPECT_EQ(StepWith(80)[0].finish_reason, FinishReason::kNone);
  EXPECT_EQ(StepWith(70)[0].finish_reason, FinishReason::kStop);

  auto ignoring = std::make_shared<Request>(*request);
  ignoring->id = 2;
  ignoring->sampling.ignore_eos = true;
  ignoring->sampling.stop_token_ids = {80};
  ASSERT_TRUE(scheduler().Add(ignoring).ok());
  EXPECT_EQ(scheduler().Schedule().added[0].sampling.banned_until_min, (Tokens{80}));

  auto without = std::make_shared<Request>(*request);
  without->id = 3;
  without->sampling.min_tokens = 0;
  ASSERT_TRUE(scheduler().Add(without).ok());
  EXPECT_TRUE(scheduler().Schedule().added[0].sampling.banned_until_min.empty());
}

TEST_F(SchedulerTest, TokensAfterAStopAreDropped) {
  auto request = Make(1, {5, 6}, 9);
  request->eos_token_ids = {70};
  ASSERT_TRUE(scheduler().Add(request).ok());
  const StepPlan plan = scheduler().Schedule();
  const auto updates = scheduler().Update(plan, {plan.step_id, {}, {{1, {8, 70, 9}}}});
  EXPECT_EQ(updates[0].new_tokens, (Tokens{8, 70}));
  EXPECT_EQ(updates[0].finish_reason, FinishReason::kStop);
}

TEST_F(SchedulerTest, RefusesWhatCanNeverRun) {
  kv_.num_blocks = 4;                                           // 12 tokens
  EXPECT_TRUE(scheduler().Add(Make(1, Range(10, 0), 3)).ok());  // the 13th token is never stored
  const Status status = scheduler().Add(Make(2, Range(10, 0), 4));
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("prompt (10 tokens) + max_tokens (4)"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("12 tokens"), std::string::npos);
  EXPECT_EQ(scheduler().Add(Make(1, Range(2, 0), 3)).code(), StatusCode::kInvalidArgument);  // id in use
  EXPECT_EQ(scheduler().Add(Make(0, Range(2, 0), 3)).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(scheduler().Add(Make(3, {}, 3)).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(scheduler().Add(Make(3, {1}, 0)).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(scheduler().Add(nullptr).code(), StatusCode::kInvalidArgument);
  while (scheduler().HasWork()) Step();
  EXPECT_EQ(outputs_[1].size(), 3u);
}

TEST_F(SchedulerTest, AResultThatDoesNotFitThePlanIsABrokenInvariant) {
  Add(1, 4);
  const StepPlan plan = scheduler().Schedule();
  EXPECT_THROW(scheduler().Update(plan, {plan.step_id, {}, {}}), InternalError);
  EXPECT_THROW(scheduler().Update(plan, {plan.step_id, {}, {{2, {5}}}}), InternalError);
  EXPECT_THROW(scheduler().Update(plan, {plan.step_id + 1, {}, {{1, {5}}}}), InternalError);
  EXPECT_THROW(scheduler().Update(plan, {plan.step_id, Status::Internal("x"), {{1, {5}}}}), InternalError);
}

TEST(SchedulerConfig, BadValuesAreRefused) {
  KvConfig kv;
  kv.num_blocks = 10;
  SchedConfig sched;
  sched.max_num_seqs = 0;
  EXPECT_THROW(Scheduler(sched, kv), InternalError);
  sched.max_num_seqs = 1;
  sched.max_num_batched_tokens = 0;
  EXPECT_THROW(Scheduler(sched, kv), InternalError);
  sched.max_num_batched_tokens = 1;
  kv.groups = {KvGroupSpec{KvGroupKind::kSlidingWindow, 0}};
  EXPECT_THROW(Scheduler(sched, kv), InternalError);
}

}  // namespace
}  // namespace fastllm
