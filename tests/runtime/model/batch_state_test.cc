// The runner's copy of the sequences when a plan is made before the result of the plan before it is known.
#include "runtime/runner/batch_state.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "core/sched/scheduler.h"

namespace fastllm::runtime {
namespace {

TEST(BatchState, TwoPlansInFlightNeedNoTokenFromTheHost) {
  SchedConfig sched;
  sched.max_model_len = 32;
  KvConfig kv;
  kv.num_blocks = 9;
  kv.block_size = 4;
  Scheduler scheduler(sched, kv);
  auto request = std::make_shared<Request>();
  request->id = 1;
  request->prompt = {5, 6, 7};
  request->max_tokens = 4;
  ASSERT_TRUE(scheduler.Add(request).ok());
  BatchState batch({100, 32, sched.max_num_seqs, sched.max_num_batched_tokens, kv.num_blocks, kv.block_size});

  const StepPlan first = scheduler.Schedule();
  const StepPlan second = scheduler.Schedule();  // token 4 is not known yet
  ASSERT_EQ(second.rows.size(), 1u);
  EXPECT_TRUE(second.diffs[0].new_block_ids.empty());
  ASSERT_TRUE(batch.Apply(first).ok());
  batch.Commit({41});
  ASSERT_TRUE(batch.Apply(second).ok());  // before the scheduler has seen 41
  ASSERT_EQ(batch.rows().size(), 1u);
  const RunnerSequence& sequence = *batch.rows()[0].sequence;
  EXPECT_EQ(sequence.tokens, (std::vector<TokenId>{5, 6, 7, 41}));
  EXPECT_EQ(sequence.num_computed_tokens, 3);
  EXPECT_EQ(sequence.blocks.size(), 1u);
  batch.Commit({42});

  scheduler.Update(first, {first.step_id, Status::Ok(), {{1, {41}}}});
  const StepPlan third = scheduler.Schedule();
  EXPECT_EQ(third.diffs[0].new_block_ids.size(), 1u);
  ASSERT_TRUE(batch.Apply(third).ok());
  EXPECT_EQ(sequence.tokens, (std::vector<TokenId>{5, 6, 7, 41, 42}));
  EXPECT_EQ(sequence.num_computed_tokens, 4);
  EXPECT_EQ(sequence.blocks.size(), 2u);
}

}  // namespace
}  // namespace fastllm::runtime
