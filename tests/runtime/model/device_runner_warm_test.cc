// What a runner makes ready before its first request.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "ops/table/device.h"
#include "runtime/device/plan_rows.h"
#include "runtime/runner/dry_steps.h"
#include "runtime/runner/rank_team.h"
#include "runtime/runner/runner_checks.h"
#include "tests/runtime/model/device_runner_fixture.h"
#include "tests/runtime/model/executor_support.h"
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
  ops::DeviceMemoryInfo memory() const override { return {int64_t{1} << 40, free_bytes - captures * graph_bytes}; }
  // Of each dry step, of each decode step of which a graph is made ahead, and of each step.
  void RecordEvent(void*, void*) const override { ++steps; }
  void Synchronize(void*) const override {
    if (captures == 0) std::this_thread::sleep_for(step_time);
  }
  void* AllocatePinned(size_t bytes) const override { return ops::HostDevice().AllocatePinned(bytes); }
  void FreePinned(void* memory) const override { ops::HostDevice().FreePinned(memory); }
  void Copy(void* to, const void* from, size_t bytes, void* stream) const override {
    ops::HostDevice().Copy(to, from, bytes, stream);
  }
  void Zero(void* memory, size_t bytes, void* stream) const override { ops::HostDevice().Zero(memory, bytes, stream); }
  bool has_graphs() const override { return graphs; }
  void BeginCapture(void*) const override {
    ++captures;
    std::this_thread::sleep_for(capture_time);
  }
  void* EndCapture(void*) const override { return &token; }
  void LaunchGraph(void*, void*) const override { ++launches; }

  int64_t free_bytes = int64_t{1} << 40;
  int64_t graph_bytes = 0;
  bool graphs = true;
  std::chrono::milliseconds step_time{0};  // until something is captured
  std::chrono::milliseconds capture_time{0};
  mutable char token = 0;
  mutable int captures = 0;
  mutable int launches = 0;
  mutable int steps = 0;
};

int StepsOfAStart(const CapturingHost& device, bool eager) {
  RunnerOptions options = Options(eager);
  options.device = &device;
  const auto runner = DeviceRunner::Create(testing::TinySource(), options, nullptr);
  EXPECT_TRUE(runner.ok()) << runner.status().ToString();
  return device.steps;
}

int LargestAndShortOnes() {
  const BatchLimits limits = MakeBatchLimits(testing::TinyConfig(), Options(false));
  return 1 + static_cast<int>(DrySteps(limits, 2048).size());
}

// Decode steps and short prompts; the CPU's attention is the same launch with and without decodes beside these.
int GraphsAhead() {
  const auto sched = Options(false).sched;
  return static_cast<int>(DecodeLadder(sched.max_num_seqs).size() + PrefillLadder(sched.max_num_batched_tokens).size());
}

StepPlan OneDecode(RequestId id) {
  StepPlan plan;
  plan.added.push_back(testing::Sequence(id, testing::Prompt(1, 2), 8));
  testing::AddRow(plan, id, 1, true);
  return plan;
}

StepPlan OnePrompt(RequestId id, int32_t tokens) {
  StepPlan plan;
  plan.added.push_back(testing::Sequence(id, testing::Prompt(tokens, 2), tokens + 4));
  testing::AddRow(plan, id, tokens, true);
  return plan;
}

TEST(DeviceRunnerWarm, TheFirstDecodeStepReplaysAGraphAndTheFirstShortPromptToo) {
  const CapturingHost device;
  RunnerOptions options = Options(/*eager=*/false);
  options.device = &device;
  const auto runner = DeviceRunner::Create(testing::TinySource(), options, nullptr);
  ASSERT_TRUE(runner.ok()) << runner.status().ToString();
  const int ahead = GraphsAhead();
  EXPECT_EQ((*runner)->num_captured_graphs(), ahead);
  EXPECT_EQ(device.captures, ahead);
  const int launches = device.launches;
  EXPECT_TRUE(testing::Step(**runner, OneDecode(1)).status.ok());
  EXPECT_EQ(device.launches, launches + 1);
  StepPlan prompt = OnePrompt(2, 37);
  prompt.removed.push_back(1);
  EXPECT_TRUE(testing::Step(**runner, prompt).status.ok());
  EXPECT_EQ(device.launches, launches + 2);
  EXPECT_EQ(device.captures, ahead);
}

// Whose context is shorter than the steps that are captured.
TEST(DeviceRunnerWarm, GraphsOfPromptsDoNotAskForALongContext) {
  const CapturingHost device;
  RunnerOptions options = Options(/*eager=*/false);
  options.device = &device;
  options.sched.max_model_len = 20;
  options.sched.max_num_seqs = 2;
  options.sched.max_num_batched_tokens = 32;
  const auto runner = DeviceRunner::Create(testing::TinySource(), options, nullptr);
  ASSERT_TRUE(runner.ok()) << runner.status().ToString();
  const int captures = device.captures, launches = device.launches;
  EXPECT_GT(captures, 2);
  EXPECT_TRUE(testing::Step(**runner, OnePrompt(1, 16)).status.ok());
  EXPECT_EQ(device.captures, captures);
  EXPECT_EQ(device.launches, launches + 1);
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

TEST(DeviceRunnerWarm, AllShortStepsAreRehearsedWhereThereAreGraphs) {
  EXPECT_GT(LargestAndShortOnes(), 10);
  EXPECT_EQ(StepsOfAStart(CapturingHost(), /*eager=*/false), LargestAndShortOnes() + GraphsAhead());
  EXPECT_EQ(StepsOfAStart(CapturingHost(), /*eager=*/true), 1);
  CapturingHost plain;
  plain.graphs = false;
  EXPECT_EQ(StepsOfAStart(plain, /*eager=*/false), 1);
}

ModelSource OneLayer() {
  ModelSource source;
  source.config = testing::TinyConfig();
  source.config.num_layers = 1;
  source.tensors = testing::TinyWeights(source.config, 3);
  return source;
}

// Graphs keep the addresses of buffers, so no step may outgrow what the start has made: not where the only layer is the
// last one, of which steps compute the rows that sample, nor where all tokens may sample.
TEST(DeviceRunnerWarm, NoStepOutgrowsTheBuffersOfTheStart) {
  for (const int32_t layers : {1, 2}) {
    for (const int32_t most : {8, 64}) {
      const CapturingHost device;
      RunnerOptions options = Options(/*eager=*/false);
      options.device = &device;
      options.sched.max_num_seqs = most;
      options.sched.max_num_batched_tokens = 64;
      const auto runner =
          DeviceRunner::Create(layers == 1 ? OneLayer() : testing::TinySource(), std::move(options), nullptr);
      ASSERT_TRUE(runner.ok()) << runner.status().ToString();
      const int64_t bytes = (*runner)->scratch_bytes();
      EXPECT_GT(bytes, 0);
      StepPlan plan;
      uint64_t step_id = 0;
      RequestId id = 0;
      for (const int32_t tokens : {9, 9, 16, 40, 40, 64, 64}) {  // those that come twice as graphs, too
        plan.removed = id == 0 ? std::vector<RequestId>{} : std::vector<RequestId>{id};
        plan.added.clear();
        plan.rows.clear();
        plan.total_tokens = 0;
        plan.step_id = ++step_id;
        plan.added.push_back(testing::Sequence(++id, testing::Prompt(tokens, 2), tokens + 4));
        testing::AddRow(plan, id, tokens, true);
        ASSERT_TRUE(testing::Step(**runner, plan).status.ok());
        EXPECT_EQ((*runner)->scratch_bytes(), bytes) << layers << " layers, " << tokens << " tokens";
      }
    }
  }
}

// What kernels take is not there for the KV cache, so a slow device loads as many.
TEST(DeviceRunnerWarm, ASlowDeviceRehearsesAsMuch) {
  CapturingHost slow;
  slow.step_time = std::chrono::milliseconds(1500 / LargestAndShortOnes());
  EXPECT_EQ(StepsOfAStart(slow, /*eager=*/false), LargestAndShortOnes() + GraphsAhead());
}

// One decode step of `seqs` new sequences, after which no others are left; ids from `first` on.
StepPlan Decodes(uint64_t step_id, RequestId first, int32_t seqs, std::vector<RequestId> removed) {
  StepPlan plan;
  plan.step_id = step_id;
  plan.removed = std::move(removed);
  for (RequestId id = first; id < first + seqs; ++id) {
    plan.added.push_back(testing::Sequence(id, testing::Prompt(1, 2), 8));
    testing::AddRow(plan, id, 1, true);
  }
  return plan;
}

// Steps of 1 to 8 decodes, each twice.
Status RunDecodes(DeviceRunner& runner) {
  RequestId next = 1;
  std::vector<RequestId> last;
  uint64_t step_id = 0;
  for (int32_t step = 0; step < 16; ++step) {
    const int32_t seqs = step / 2 + 1;
    const StepResult result = testing::Step(runner, Decodes(++step_id, next, seqs, std::move(last)));
    FASTLLM_RETURN_IF_ERROR(result.status);
    last.clear();
    for (int32_t i = 0; i < seqs; ++i) last.push_back(next++);
  }
  return Status::Ok();
}

// Two ranks in threads, whose devices have room for as many graphs as they like; the time of one is up at once.
TEST(DeviceRunnerWarm, RanksCaptureDecodeStepsAheadTogether) {
  for (const bool hurried : {false, true}) {
    auto hub = MemoryHub::Create({2}, std::chrono::seconds(60));
    ASSERT_TRUE(hub.ok());
    RankTeam team(std::move(hub).value(), 2);
    std::vector<CapturingHost> devices(2);
    if (hurried) devices[1].capture_time = std::chrono::milliseconds(1200);
    std::vector<std::unique_ptr<DeviceRunner>> runners(2);
    const auto load = [&](int32_t rank) -> Status {
      RunnerOptions options = testing::ranked::Options({"", {2}});
      options.ranks = team.hub().RanksOf(rank);
      options.ranks.host = options.ranks.tensor;
      options.device = &devices[rank];
      FASTLLM_ASSIGN_OR_RETURN(runners[rank], DeviceRunner::Create(testing::ranked::Source(), options, nullptr));
      return Status::Ok();
    };
    ASSERT_TRUE(team.Run(load, std::chrono::seconds(60)).ok());
    const auto all = static_cast<int32_t>(DecodeLadder(testing::ranked::Options({"", {2}}).sched.max_num_seqs).size());
    EXPECT_GT(all, 2);
    for (const auto& runner : runners) EXPECT_EQ(runner->num_captured_graphs(), hurried ? 1 : all);
    const auto first = [&](int32_t rank) { return testing::Step(*runners[rank], OneDecode(1)).status; };
    EXPECT_TRUE(team.Run(first, std::chrono::seconds(60)).ok());
    for (const CapturingHost& device : devices) EXPECT_EQ(device.captures, hurried ? 1 : all);  // it was a replay
    const auto end = [&](int32_t rank) {
      runners[rank].reset();
      return Status::Ok();
    };
    EXPECT_TRUE(team.Run(end, std::chrono::seconds(60)).ok());
  }
}

// A step is captured by all or by none: whose calls are in a graph waits for those of the others.
TEST(DeviceRunnerWarm, RanksCaptureTheSameStepsThoughOneIsShortOfMemory) {
  auto hub = MemoryHub::Create({2}, std::chrono::seconds(60));
  ASSERT_TRUE(hub.ok());
  RankTeam team(std::move(hub).value(), 2);
  std::vector<CapturingHost> devices(2);
  devices[1].graph_bytes = int64_t{1} << 30;
  devices[1].free_bytes = 3 * devices[1].graph_bytes - 1;
  std::vector<std::unique_ptr<DeviceRunner>> runners(2);
  const auto each = [&](const std::function<Status(int32_t)>& work) {
    return team.Run(work, std::chrono::seconds(60));
  };
  const Status loaded = each([&](int32_t rank) -> Status {
    RunnerOptions options = testing::ranked::Options({"", {2}});
    options.ranks = team.hub().RanksOf(rank);
    options.ranks.host = options.ranks.tensor;
    options.device = &devices[rank];
    FASTLLM_ASSIGN_OR_RETURN(runners[rank], DeviceRunner::Create(testing::ranked::Source(), options, nullptr));
    return Status::Ok();
  });
  ASSERT_TRUE(loaded.ok()) << loaded.ToString();
  EXPECT_EQ(devices[0].steps, devices[1].steps);
  EXPECT_GT(devices[0].steps, LargestAndShortOnes());                         // with those of penalties and logprobs
  for (const CapturingHost& device : devices) EXPECT_EQ(device.captures, 3);  // ahead, until one has no room
  const Status ran = each([&](int32_t rank) { return RunDecodes(*runners[rank]); });
  EXPECT_TRUE(ran.ok()) << ran.ToString();
  for (const CapturingHost& device : devices) EXPECT_EQ(device.captures, 3);
  for (const auto& runner : runners) EXPECT_EQ(runner->num_captured_graphs(), 3);
  const Status ended = each([&](int32_t rank) {
    runners[rank].reset();
    return Status::Ok();
  });
  EXPECT_TRUE(ended.ok());
}

}  // namespace
}  // namespace fastllm::runtime
