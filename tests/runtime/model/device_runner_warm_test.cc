// What a runner makes ready before its first request.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "ops/table/device.h"
#include "runtime/device/plan_rows.h"
#include "runtime/runner/dry_steps.h"
#include "tests/runtime/model/device_runner_fixture.h"
#include "tests/runtime/model/idle_device.h"

namespace fastllm::runtime {
namespace {

using testing::Options;

TEST(PlanRows, StandsForAsManyRowsOrFewMore) {
  EXPECT_EQ(PlanRows(1), 16);
  EXPECT_EQ(PlanRows(256), 256);
  EXPECT_EQ(PlanRows(257), 288);
  EXPECT_EQ(PlanRows(1025), 1088);
  EXPECT_EQ(PlanRows(8192), 8192);
  for (int32_t rows = 1; rows <= 20000; ++rows) {
    const int32_t plan = PlanRows(rows);
    ASSERT_GE(plan, rows);
    ASSERT_LT(plan - rows, std::max(16, rows / 8)) << rows;
    ASSERT_EQ(PlanRows(plan), plan);
    ASSERT_GE(PlanRows(rows + 1), plan);
  }
}

TEST(PlanRows, SizesAreAllThatStandForRows) {
  std::set<int32_t> stand;
  for (int32_t rows = 65; rows <= 5000; ++rows) stand.insert(PlanRows(rows));
  EXPECT_EQ(PlanSizes(64, 5000), std::vector<int32_t>(stand.begin(), stand.end()));
  EXPECT_TRUE(PlanSizes(64, 64).empty());
}

BatchLimits Limits(int32_t seqs, int32_t tokens, int32_t length) {
  BatchLimits l;
  l.max_num_seqs = seqs;
  l.max_num_batched_tokens = tokens;
  l.max_model_len = length;
  l.block_size = 16;
  return l;
}

// What a product is asked about is known after them: with the tokens of a step as its rows, or, of the vocabulary, with
// those that sample.
TEST(DrySteps, MakeKnownWhatStepsOfPromptsAndDecodesAskFor) {
  for (const int32_t seqs : {1, 5, 64, 256}) {
    std::set<int32_t> tokens, samples;
    for (const DryShape& step : DrySteps(Limits(seqs, 8192, 4096), 2048)) {
      tokens.insert(PlanRows(step.tokens));
      samples.insert(PlanRows(step.seqs));
    }
    for (int32_t rows = 1; rows <= 1024; ++rows) EXPECT_TRUE(tokens.contains(PlanRows(rows))) << seqs << " " << rows;
    for (int32_t rows = 1; rows <= seqs; ++rows) EXPECT_TRUE(samples.contains(PlanRows(rows))) << seqs << " " << rows;
  }
}

TEST(DrySteps, AreStepsThatThereCanBe) {
  const BatchLimits all[] = {Limits(1, 16, 16), Limits(8, 128, 64), Limits(256, 8192, 4096), Limits(64, 100, 2048),
                             Limits(300, 300, 32)};
  for (const BatchLimits& l : all) {
    const std::vector<DryShape> steps = DrySteps(l, 1 << 30);
    EXPECT_FALSE(steps.empty());
    for (const DryShape& step : steps) {
      EXPECT_GE(step.seqs, 1);
      EXPECT_LE(step.seqs, std::min(l.max_num_seqs, step.tokens));
      EXPECT_LE(step.tokens, l.max_num_batched_tokens);
      EXPECT_LE((step.tokens + step.seqs - 1) / step.seqs, l.max_model_len);
    }
  }
}

// The CPU with graphs: what is put on its stream while it captures is done at once, and a graph does nothing.
class CapturingHost : public testing::IdleDevice {
 public:
  ops::DeviceMemoryInfo memory() const override { return {int64_t{1} << 40, free_bytes}; }
  void* AllocatePinned(size_t bytes) const override { return ops::HostDevice().AllocatePinned(bytes); }
  void FreePinned(void* memory) const override { ops::HostDevice().FreePinned(memory); }
  void Copy(void* to, const void* from, size_t bytes, void* stream) const override {
    ops::HostDevice().Copy(to, from, bytes, stream);
  }
  void Zero(void* memory, size_t bytes, void* stream) const override { ops::HostDevice().Zero(memory, bytes, stream); }
  bool has_graphs() const override { return true; }
  void BeginCapture(void*) const override { ++captures; }
  void* EndCapture(void*) const override { return &token; }
  void LaunchGraph(void*, void*) const override { ++launches; }

  int64_t free_bytes = int64_t{1} << 40;
  mutable char token = 0;
  mutable int captures = 0;
  mutable int launches = 0;
};

StepPlan OneDecode(RequestId id) {
  StepPlan plan;
  plan.added.push_back(testing::Sequence(id, testing::Prompt(1, 2), 8));
  testing::AddRow(plan, id, 1, true);
  return plan;
}

TEST(DeviceRunnerWarm, TheFirstDecodeStepReplaysAGraph) {
  const CapturingHost device;
  RunnerOptions options = Options(/*eager=*/false);
  options.device = &device;
  const auto runner = DeviceRunner::Create(testing::TinySource(), options, nullptr);
  ASSERT_TRUE(runner.ok()) << runner.status().ToString();
  const auto sizes = static_cast<int32_t>(DecodeLadder(options.sched.max_num_seqs).size());
  EXPECT_EQ((*runner)->num_captured_graphs(), sizes);
  EXPECT_EQ(device.captures, sizes);
  EXPECT_EQ(device.launches, sizes);
  EXPECT_TRUE(testing::Step(**runner, OneDecode(1)).status.ok());
  EXPECT_EQ(device.captures, sizes);
  EXPECT_EQ(device.launches, sizes + 1);
}

TEST(DeviceRunnerWarm, NothingIsCapturedEagerlyOrWithoutMemory) {
  CapturingHost device;
  RunnerOptions options = Options(/*eager=*/true);
  options.device = &device;
  ASSERT_TRUE(DeviceRunner::Create(testing::TinySource(), options, nullptr).ok());
  EXPECT_EQ(device.captures, 0);
  options.enforce_eager = false;
  device.free_bytes = 0;
  ASSERT_TRUE(DeviceRunner::Create(testing::TinySource(), options, nullptr).ok());
  EXPECT_EQ(device.captures, 0);
}

}  // namespace
}  // namespace fastllm::runtime
