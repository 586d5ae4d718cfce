// Plans for a pipeline: several in flight, of different sequences, of even sizes.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "core/sched/scheduler.h"
#include "sched_fixture.h"

namespace fastllm {
namespace {

class PipelineTest : public InFlightTest {
 protected:
  void Planned() override { ExpectNoSequenceTwice(); }

  void ExpectNoSequenceTwice() {
    std::set<RequestId> seen;
    for (const StepPlan& plan : in_flight_) {
      for (const ScheduledRow& row : plan.rows) EXPECT_TRUE(seen.insert(row.id).second) << row.id;
    }
  }
};

TEST_F(PipelineTest, SequencesTakeTurns) {
  sched_.pipeline_stages = 2;
  sched_.async_scheduling = false;
  for (RequestId id = 1; id <= 4; ++id) Add(id, 5, 3);
  EXPECT_EQ(scheduler().max_in_flight(), 2);
  EXPECT_EQ(Plan(), "1:5* 2:5*");
  EXPECT_EQ(Plan(), "3:5* 4:5*");
  EXPECT_EQ(Plan(), "");  // two steps are in flight
  Complete();
  EXPECT_EQ(Plan(), "1:1* 2:1*");
  Complete();
  EXPECT_EQ(Plan(), "3:1* 4:1*");
  RunAll();
  for (RequestId id = 1; id <= 4; ++id) EXPECT_EQ(outputs_[id], Model(id, 5, 3));
}

TEST_F(PipelineTest, OverlappedOneMoreStepIsInFlight) {
  sched_.pipeline_stages = 2;
  for (RequestId id = 1; id <= 5; ++id) Add(id, 5, 3);
  EXPECT_EQ(scheduler().max_in_flight(), 3);
  EXPECT_EQ(Plan(), "1:5* 2:5*");
  EXPECT_EQ(Plan(), "3:5* 4:5*");
  EXPECT_EQ(Plan(), "5:5*");
  EXPECT_EQ(Plan(), "");
  RunAll();
  for (RequestId id = 1; id <= 5; ++id) EXPECT_EQ(outputs_[id], Model(id, 5, 3));
}

TEST_F(PipelineTest, ASequenceWaitsForItsOwnStep) {
  sched_.pipeline_stages = 4;
  sched_.max_num_batched_tokens = 4;
  Add(1, 10, 2);
  EXPECT_EQ(Plan(), "1:4");
  EXPECT_EQ(Plan(), "");  // its next chunk as well
  Complete();
  EXPECT_EQ(Plan(), "1:4");
  RunAll();
  EXPECT_EQ(outputs_[1], Model(1, 10, 2));
}

TEST_F(PipelineTest, TheRestIsAsWithoutOne) {
  for (const int32_t stages : {2, 3, 4}) {
    for (const bool overlapped : {false, true}) {
      scheduler_ = nullptr;
      outputs_.clear();
      sched_.pipeline_stages = stages;
      sched_.async_scheduling = overlapped;
      sched_.max_num_batched_tokens = 24;
      kv_.num_blocks = 24;  // too few for all: preemptions
      for (RequestId id = 1; id <= 9; ++id) Add(id, 6 + static_cast<int32_t>(id) * 3 % 20, 12);
      RunAll();
      EXPECT_GT(scheduler().stats().preemptions, 0);
      EXPECT_EQ(scheduler().stats().used_blocks, 0);
      for (RequestId id = 1; id <= 9; ++id) {
        EXPECT_EQ(outputs_[id], Model(id, 6 + static_cast<int32_t>(id) * 3 % 20, 12)) << id;
      }
    }
  }
}

}  // namespace
}  // namespace fastllm
