// What steps are padded to, and when they are captured.
#include "runtime/runner/step_graphs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "runtime/runner/runner_checks.h"
#include "tests/runtime/model/idle_device.h"
#include "tests/runtime/model/runner_support.h"

namespace fastllm::runtime {
namespace {

using testing::AddRow;
using testing::Prompt;
using testing::Sequence;

TEST(DecodeLadder, SizesRiseToTheMost) {
  EXPECT_EQ(DecodeLadder(1), std::vector<int32_t>({1}));
  EXPECT_EQ(DecodeLadder(5), std::vector<int32_t>({1, 2, 4, 5}));
  EXPECT_EQ(DecodeLadder(100), std::vector<int32_t>({1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 100}));
  const auto large = DecodeLadder(1024);
  EXPECT_EQ(large.back(), 1024);
  EXPECT_TRUE(std::is_sorted(large.begin(), large.end()));
  EXPECT_EQ(std::adjacent_find(large.begin(), large.end()), large.end());
}

// A device whose graphs are lists of what was enqueued.
class RecordingDevice final : public testing::IdleDevice {
 public:
  mutable std::vector<std::string> calls;
  mutable int64_t free_bytes = 1000;
  mutable bool refuses = false;

  ops::DeviceMemoryInfo memory() const override { return {1000, free_bytes}; }
  bool has_graphs() const override { return true; }
  void BeginCapture(void*) const override { calls.push_back("begin"); }
  void* EndCapture(void*) const override {
    calls.push_back("end");
    return refuses ? nullptr : new int(0);
  }
  void LaunchGraph(void*, void*) const override { calls.push_back("launch"); }
  void DestroyGraph(void* graph) const override {
    calls.push_back("destroy");
    delete static_cast<int*>(graph);
  }
};

GraphLimits Limits() { return {8, 128, 100, 2}; }

StepKey DecodeKey(int32_t size) {
  StepKey key;
  key.shape = {size, size, size, 0};
  key.decode = true;
  return key;
}

TEST(PrefillLadder, SizesRiseToTheMost) {
  EXPECT_EQ(PrefillLadder(15), std::vector<int32_t>());
  EXPECT_EQ(PrefillLadder(100), std::vector<int32_t>({16, 32, 64, 96}));
  EXPECT_EQ(PrefillLadder(8192), std::vector<int32_t>({16, 32, 64, 96, 128, 160, 192, 224, 256}));
}

TEST(StepGraphs, StepsArePaddedToFewSizes) {
  const RecordingDevice device;
  const StepGraphs graphs(device, nullptr, {200, 260, 0, 2});
  EXPECT_EQ(graphs.Pad({3, 3, 3, 0}, true), StageShape({4, 4, 4, 0}));
  EXPECT_EQ(graphs.Pad({200, 200, 200, 0}, true), StageShape({200, 200, 200, 0}));
  EXPECT_EQ(graphs.Pad({201, 201, 201, 0}, true).tokens, 0);
  EXPECT_EQ(graphs.Pad({16, 1, 1, 0}, false), StageShape({16, 9, 8, 0}));
  EXPECT_EQ(graphs.Pad({17, 9, 8, 0}, false), StageShape({32, 65, 32, 0}));  // no more samples than tokens
  EXPECT_EQ(graphs.Pad({161, 65, 64, 0}, false), StageShape({192, 201, 192, 0}));
  EXPECT_EQ(graphs.Pad({256, 200, 199, 0}, false), StageShape({256, 201, 200, 0}));
  EXPECT_EQ(graphs.Pad({257, 2, 2, 0}, false).tokens, 0);
  EXPECT_EQ(StepGraphs(device, nullptr, {8, 100, 0, 2}).Pad({97, 2, 2, 0}, false).tokens, 0);  // 128 may not be
  EXPECT_EQ(graphs.Pad({16, 1, 0, 0}, false).tokens, 0);
}

// Whatever is missing belongs to sequences of length 0, and every row number is one of the step.
TEST(StepGraphs, ThePaddingOfAStageIsOneSequenceOrMore) {
  const RunnerOptions o = testing::TinyOptions();
  BatchState batch(MakeBatchLimits(testing::TinyConfig(), o));
  batch.SetNumBlocks(o.kv.num_blocks);
  StepPlan plan;
  plan.added.push_back(Sequence(1, Prompt(9, 1), 12));
  plan.added.push_back(Sequence(2, Prompt(4, 2), 12));
  AddRow(plan, 1, 9, true);
  AddRow(plan, 2, 3, false);
  ASSERT_TRUE(batch.Apply(plan).ok());
  for (const int32_t seqs : {3, 5, 9}) {
    const StageShape shape{16, seqs, 4, 0};
    const int64_t bytes = MaxStageBytes(batch.limits(), 0);
    std::vector<char> host(bytes, 'x');
    const StagedStep step = FillStage(batch, shape, {}, host.data(), bytes);
    const auto* start = reinterpret_cast<const int32_t*>(host.data() + step.layout.query_start);
    const auto* length = reinterpret_cast<const int32_t*>(host.data() + step.layout.seq_len);
    const auto* slot = reinterpret_cast<const int64_t*>(host.data() + step.layout.slot_mapping);
    EXPECT_EQ(std::vector<int32_t>(start, start + 3), std::vector<int32_t>({0, 9, 12}));
    EXPECT_TRUE(std::is_sorted(start, start + seqs + 1));
    EXPECT_EQ(start[seqs], 16);
    EXPECT_EQ(std::vector<int32_t>(length, length + 2), std::vector<int32_t>({9, 3}));
    EXPECT_EQ(std::count(length + 2, length + seqs, 0), seqs - 2);
    EXPECT_EQ(std::count(slot, slot + 16, -1), 4);
    const auto* rows = reinterpret_cast<const int32_t*>(host.data() + step.layout.logit_rows);
    const auto* keep = reinterpret_cast<const int32_t*>(host.data() + step.layout.keep_slots);
    EXPECT_EQ(rows[0], 8);
    EXPECT_TRUE(std::all_of(rows, rows + 4, [](int32_t r) { return r >= 0 && r < 16; }));
    EXPECT_EQ(std::count(keep, keep + 4, -1), 3);
  }
}

TEST(StepGraphs, TheSecondUseCapturesAndLaterOnesReplay) {
  const RecordingDevice device;
  StepGraphs graphs(device, nullptr, Limits());
  const auto step = [&] { device.calls.push_back("enqueue"); };
  using Calls = std::vector<std::string>;
  graphs.Run(DecodeKey(4), step);
  EXPECT_EQ(device.calls, Calls({"enqueue"}));
  device.calls.clear();
  graphs.Run(DecodeKey(4), step);
  EXPECT_EQ(device.calls, Calls({"begin", "enqueue", "end", "launch"}));
  device.calls.clear();
  graphs.Run(DecodeKey(4), step);
  EXPECT_EQ(device.calls, Calls({"launch"}));
  EXPECT_EQ(graphs.num_captured(), 1);
}

// Decode has room of its own.
TEST(StepGraphs, OnlySoManyStepsWithPrefillAreCaptured) {
  const RecordingDevice device;
  StepGraphs graphs(device, nullptr, Limits());
  for (const int32_t tokens : {16, 32, 64, 96}) {
    StepKey key;
    key.shape = {tokens, 9, 8, 0};
    for (int i = 0; i < 2; ++i) graphs.Run(key, [] {});
  }
  EXPECT_EQ(graphs.num_captured(), 2);
  for (int i = 0; i < 2; ++i) graphs.Run(DecodeKey(4), [] {});
  EXPECT_EQ(graphs.num_captured(), 3);
}

// Two steps of one shape whose launches differ are two graphs.
TEST(StepGraphs, LaunchSizesAreOfTheKey) {
  const RecordingDevice device;
  StepGraphs graphs(device, nullptr, Limits());
  StepKey with = DecodeKey(4), without = DecodeKey(4);
  with.decode_workers = 264;
  for (int i = 0; i < 2; ++i) graphs.Run(with, [] {});
  device.calls.clear();
  graphs.Run(without, [] {});
  EXPECT_EQ(device.calls, std::vector<std::string>());
  EXPECT_EQ(graphs.num_captured(), 1);
}

TEST(StepGraphs, NothingIsCapturedWithoutMemoryOrAfterARefusal) {
  using Calls = std::vector<std::string>;
  const RecordingDevice device;
  const auto step = [&] { device.calls.push_back("enqueue"); };
  StepGraphs small(device, nullptr, Limits());
  device.free_bytes = 50;
  small.Run(DecodeKey(4), step);
  small.Run(DecodeKey(4), step);
  EXPECT_EQ(device.calls, Calls({"enqueue", "enqueue"}));
  device.free_bytes = 1000;
  device.refuses = true;
  device.calls.clear();
  StepGraphs refused(device, nullptr, Limits());
  for (int i = 0; i < 3; ++i) refused.Run(DecodeKey(2), step);
  EXPECT_EQ(device.calls, Calls({"enqueue", "begin", "enqueue", "end", "enqueue", "enqueue"}));
}

// Of ranks: a step is captured by all or by none, whoever has no room for it or cannot.
TEST(StepGraphs, RanksCaptureTheSameSteps) {
  using Calls = std::vector<std::string>;
  for (const int32_t no_at : {0, 1, 9}) {  // another rank says no to the first question, to the second, to none
    const RecordingDevice device;
    std::vector<bool> said;
    GraphLimits limits = Limits();
    limits.all_say = [&](bool yes) {
      said.push_back(yes);
      return yes && std::cmp_not_equal(said.size(), no_at + 1);
    };
    {
      StepGraphs graphs(device, nullptr, limits);
      const auto step = [&] { device.calls.push_back("enqueue"); };
      for (int i = 0; i < 3; ++i) graphs.Run(DecodeKey(4), step);
      for (int i = 0; i < 2; ++i) graphs.Run(DecodeKey(2), step);  // nothing is asked once it is over
      EXPECT_EQ(graphs.num_captured(), no_at == 9 ? 2 : 0);
    }
    const Calls plain = {"enqueue", "enqueue", "enqueue", "enqueue", "enqueue"};
    const Calls refused = {"enqueue", "begin", "enqueue", "end", "destroy", "enqueue", "enqueue", "enqueue", "enqueue"};
    const Calls captured = {"enqueue", "begin",   "enqueue", "end",    "launch",  "launch", "enqueue",
                            "begin",   "enqueue", "end",     "launch", "destroy", "destroy"};
    EXPECT_EQ(device.calls, no_at == 0 ? plain : no_at == 1 ? refused : captured);
    EXPECT_EQ(said, std::vector<bool>(no_at == 9 ? 4 : no_at + 1, true));
  }
}

TEST(StepGraphs, ARankWithoutRoomSaysSo) {
  const RecordingDevice device;
  device.free_bytes = 50;
  std::vector<bool> said;
  GraphLimits limits = Limits();
  limits.all_say = [&](bool yes) {
    said.push_back(yes);
    return yes;
  };
  StepGraphs small(device, nullptr, limits);
  for (int i = 0; i < 3; ++i) small.Run(DecodeKey(4), [] {});
  device.free_bytes = 1000;
  device.refuses = true;
  StepGraphs refused(device, nullptr, limits);
  for (int i = 0; i < 3; ++i) refused.Run(DecodeKey(4), [] {});
  EXPECT_EQ(said, (std::vector<bool>{false, true, false}));
}

}  // namespace
}  // namespace fastllm::runtime
