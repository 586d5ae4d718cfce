// The engine over ranks in processes: the tokens of one rank, in every mode; what a rank that fails does to it, and
// that nothing is left of any.
#include "runtime/executor/processes_executor.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "runtime/executor/local_executor.h"
#include "runtime/executor/rank_messages.h"
#include "tests/runtime/model/executor_support.h"

namespace fastllm::runtime {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ranked::kRequests;
using testing::ranked::MakeRequest;
using testing::ranked::Mode;
using testing::ranked::Options;
using testing::ranked::RunAll;
using testing::ranked::Source;

// Processes whose parent is this one.
std::vector<pid_t> Children() {
  std::vector<pid_t> children;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream list(task.path() / "children");
    for (pid_t pid = 0; list >> pid;) children.push_back(pid);
  }
  return children;
}

// That runs the rank with this number, by its name.
pid_t ProcessOf(int32_t rank) {
  for (const pid_t pid : Children()) {
    std::string name;
    std::ifstream("/proc/" + std::to_string(pid) + "/comm") >> name;
    if (name == "fastllm-rank" + std::to_string(rank)) return pid;
  }
  return -1;
}

RankProcessesOptions Processes(const Mode& m, const std::string& fault = "", milliseconds timeout = seconds(60)) {
  RankProcessesOptions o;
  o.sizes = m.sizes;
  o.timeout = timeout;
  o.command = {FASTLLM_RANK_PROGRAM};
  o.engine = std::to_string(m.async) + " " + std::to_string(m.prefix_cache) + " " + std::to_string(m.num_blocks) + " " +
             std::to_string(m.budget) + " " + fault;
  return o;
}

std::unique_ptr<EngineCore> Engine(const Mode& m, const std::string& fault = "", milliseconds timeout = seconds(60)) {
  const RunnerOptions options = Options(m);
  auto executor = m.sizes.world() == 1 ? MakeLocalExecutor(Source(), options, nullptr)
                                       : MakeProcessesExecutor(Processes(m, fault, timeout), nullptr);
  EXPECT_TRUE(executor.ok()) << executor.status().ToString();
  return std::make_unique<EngineCore>(options.sched, options.kv, std::move(executor).value(), nullptr);
}

TEST(RankMessagesTest, AreReadAsWritten) {
  StepPlan plan;
  plan.step_id = 9;
  plan.rows.push_back({4, 3, true});
  plan.total_tokens = 3;
  const std::string order = EncodeOrder({{8, 4, -1}, {8, 5, 77}}, plan);
  const auto read = DecodeOrder(order);
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  ASSERT_EQ(read->learned.size(), 2u);
  EXPECT_EQ(read->learned[0].token, -1);
  EXPECT_EQ(read->learned[1].id, 5u);
  EXPECT_EQ(read->plan.step_id, 9u);
  EXPECT_EQ(DecodeOrder(EncodeEnd())->kind, RankOrder::Kind::kEnd);
  RankReport report;
  report.phases = {{"load_weights", 0.5}, {"kv_cache", 2}};
  report.result.status = Status::ResourceExhausted("no room");
  const std::string bytes = EncodeReport(report);
  const auto back = DecodeReport(bytes);
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  EXPECT_EQ(back->phases, report.phases);
  EXPECT_EQ(back->result.status.message(), "no room");
  for (size_t n = 0; n < order.size(); ++n) EXPECT_FALSE(DecodeOrder(order.substr(0, n)).ok() && n != 5) << n;
  for (size_t n = 0; n < bytes.size(); ++n) EXPECT_FALSE(DecodeReport(bytes.substr(0, n)).ok()) << n;
}

class ProcessModes : public ::testing::TestWithParam<Mode> {};

TEST_P(ProcessModes, GiveTheTokensOfOneRank) {
  const auto one = RunAll(Engine({"One", {}}).get());
  auto engine = Engine(GetParam());
  const auto several = RunAll(engine.get());
  for (const auto& [id, o] : one) {
    EXPECT_EQ(several.at(id).ids, o.ids) << "request " << id;
    EXPECT_EQ(several.at(id).logprobs, o.logprobs);
  }
  EXPECT_EQ(engine->stats().used_blocks, 0);
  EXPECT_EQ(Children().size(), static_cast<size_t>(GetParam().sizes.world()));
  engine.reset();
  EXPECT_TRUE(Children().empty());
}

// Starting a process costs half a second of a core: some by default, all with FASTLLM_TEST_RANKS=all.
std::vector<Mode> ModesToRun() {
  std::vector<Mode> modes = {{"Tp3", {3}}, {"Tp2Pp2", {2, 2}}, {"Pp2Chunks", {1, 2}, true, true, 200, 9}};
  const char* which = std::getenv("FASTLLM_TEST_RANKS");
  if (which == nullptr || std::string(which) != "all") return modes;
  const Mode rest[] = {
      {"Tp2", {2}},
      {"Tp4", {4}},
      {"Pp2", {1, 2}},
      {"Tp3Pp2", {3, 2}},
      {"Tp4Pp2", {4, 2}},
      {"Tp2Pp2Sync", {2, 2}, false},
      {"Tp2Pp2Preempts", {2, 2}, true, false, 26},
  };
  modes.insert(modes.end(), std::begin(rest), std::end(rest));
  return modes;
}
INSTANTIATE_TEST_SUITE_P(Each, ProcessModes, ::testing::ValuesIn(ModesToRun()),
                         [](const auto& info) { return std::string(info.param.name); });

struct FaultCase {
  const char* name;
  ParallelSizes sizes;
  const char* fault;
  const char* message;
};

// Until the engine has failed; what finished before is well.
Status Failure(EngineCore* engine) {
  for (;;) {
    const auto deltas = engine->Drain(seconds(60));
    if (deltas.empty()) return Status::Ok();
    for (const RequestDelta& d : deltas) {
      if (d.finish_reason == FinishReason::kError) return {d.error_code, d.error};
    }
  }
}

class ProcessFaults : public ::testing::TestWithParam<FaultCase> {};

TEST_P(ProcessFaults, EndTheEngineWithTheRanksName) {
  const FaultCase& p = GetParam();
  auto engine = Engine({"", p.sizes}, p.fault, milliseconds(1000));
  const auto start = std::chrono::steady_clock::now();
  for (int32_t i = 0; i < kRequests; ++i) {
    if (!engine->Add(MakeRequest(i)).ok()) break;
  }
  const Status why = Failure(engine.get());
  EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(5));
  EXPECT_EQ(why.code(), StatusCode::kUnavailable);
  EXPECT_NE(why.message().find(p.message), std::string::npos) << why.message();
  EXPECT_EQ(engine->health().message(), why.message());
  engine.reset();
  EXPECT_TRUE(Children().empty());
}

const FaultCase kFaults[] = {
    {"ThrowsInTp", {3}, "2 throws", "rank 2 (tp 2, pp 0): the board is on fire"},
    {"FailsInStage0", {2, 2}, "1 fails", "rank 1 (tp 1, pp 0): the numbers do not add up"},
    {"ExitsInTp", {2}, "1 exits", ", exited with status 7"},
    {"HangsInTp", {2}, "1 hangs", "rank 1 (tp 1, pp 0) did not "},
    {"HangsInStage0", {2, 2}, "1 hangs", "rank 1 (tp 1, pp 0) did not "},
    {"StraysInTp", {3}, "1 strays", "rank 1 (tp 1, pp 0) is about to run another step"},
    {"StraysInStage1", {1, 2}, "1 strays", "rank 1 (tp 0, pp 1) is about to run another step"},
};
INSTANTIATE_TEST_SUITE_P(Each, ProcessFaults, ::testing::ValuesIn(kFaults),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(ProcessesExecutorTest, ARankThatIsKilledIsNamedAlsoWhenNobodyWaits) {
  for (const bool busy : {true, false}) {
    auto engine = Engine({"", {2}});
    RunAll(engine.get());
    const pid_t victim = ProcessOf(1);
    ASSERT_GT(victim, 0);
    if (busy) {
      auto request = MakeRequest(50);
      request->max_tokens = 60;
      ASSERT_TRUE(engine->Add(request).ok());
      engine->Drain(seconds(60));
    }
    const auto start = std::chrono::steady_clock::now();
    kill(victim, SIGKILL);
    if (busy) {
      EXPECT_FALSE(Failure(engine.get()).ok());
    }
    while (!engine->Drain(seconds(5)).empty()) {  // until the engine has ended, which ends the waiting at once
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(5));
    EXPECT_EQ(engine->health().message(), "engine failed: unavailable: rank 1 (tp 1, pp 0), process " +
                                              std::to_string(victim) + ", was killed by signal 9 (Killed)");
    EXPECT_EQ(engine->Add(MakeRequest(99)).code(), StatusCode::kUnavailable);
    engine.reset();
    EXPECT_TRUE(Children().empty());
  }
}

TEST(ProcessesExecutorTest, AStoppedRankIsKilledAtTheEnd) {
  auto engine = Engine({"", {2}});
  RunAll(engine.get());
  kill(ProcessOf(0), SIGSTOP);
  engine.reset();
  EXPECT_TRUE(Children().empty());
}

TEST(ProcessesExecutorTest, WhatCannotStartIsNamed) {
  const Mode mode{"", {3}};
  EXPECT_EQ(MakeProcessesExecutor(Processes(mode, "1 unloadable"), nullptr).status().message(),
            "rank 1 (tp 1, pp 0): no room");
  RankProcessesOptions options = Processes(mode);
  options.command = {"/no/such/program"};
  EXPECT_EQ(MakeProcessesExecutor(options, nullptr).status().message(),
            "cannot start /no/such/program: No such file or directory");
  options.command = {"false"};
  EXPECT_NE(MakeProcessesExecutor(options, nullptr).status().message().find(", exited with status 1"),
            std::string::npos);
  EXPECT_TRUE(Children().empty());
}

}  // namespace
}  // namespace fastllm::runtime
