// The engine over ranks in threads: the tokens of one rank, in every mode; and what a rank that fails does to it.
#include "runtime/executor/threads_executor.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/engine/engine_core.h"
#include "runtime/executor/local_executor.h"
#include "runtime/runner/make_runner.h"
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

std::unique_ptr<EngineCore> Engine(const Mode& m, RankRunnerFactory make_runner = nullptr,
                                   milliseconds timeout = seconds(60)) {
  const RunnerOptions options = Options(m);
  auto executor = m.sizes.world() == 1 && !make_runner
                      ? MakeLocalExecutor(Source(), options, nullptr)
                      : MakeThreadsExecutor(Source(), options, {m.sizes, timeout, std::move(make_runner)}, nullptr);
  EXPECT_TRUE(executor.ok()) << executor.status().ToString();
  return std::make_unique<EngineCore>(options.sched, options.kv, std::move(executor).value(), nullptr);
}

class Modes : public ::testing::TestWithParam<Mode> {};

TEST_P(Modes, GiveTheTokensOfOneRank) {
  const auto one = RunAll(Engine({"One", {}}).get());
  const auto engine = Engine(GetParam());
  const auto several = RunAll(engine.get());
  for (const auto& [id, o] : one) {
    EXPECT_EQ(several.at(id).ids, o.ids) << "request " << id;
    EXPECT_EQ(several.at(id).logprobs, o.logprobs);
    EXPECT_EQ(o.ids.size(), static_cast<size_t>(MakeRequest(static_cast<int32_t>(id) - 1)->max_tokens));
  }
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.used_blocks, 0);
  if (GetParam().num_blocks < 40) {
    EXPECT_GT(stats.preemptions, 0);
  }
  const bool hits = GetParam().prefix_cache && GetParam().num_blocks >= 200;
  if (hits) {
    EXPECT_GT(stats.prefix_hit_tokens, 0);
  }
}

const Mode kModes[] = {
    {"Tp2", {2}},
    {"Tp3", {3}},
    {"Tp4", {4}},
    {"Pp2", {1, 2}},
    {"Pp4", {1, 4}},
    {"Tp2Pp2", {2, 2}},
    {"Tp3Pp2", {3, 2}},
    {"Tp2Sync", {2}, false},
    {"Pp2Sync", {1, 2}, false},
    {"Tp2Pp2Sync", {2, 2}, false},
    {"Tp2NoCache", {2}, true, false},
    {"Pp2NoCache", {1, 2}, true, false},
    {"Tp2Preempts", {2}, true, true, 26},
    {"Pp2Preempts", {1, 2}, true, true, 26},
    {"Tp2Pp2Preempts", {2, 2}, true, false, 26},
    {"Pp2SyncPreempts", {1, 2}, false, true, 26},
    {"Tp2Chunks", {2}, true, true, 200, 9},
    {"Pp2Chunks", {1, 2}, true, true, 200, 9},
};
INSTANTIATE_TEST_SUITE_P(Each, Modes, ::testing::ValuesIn(kModes),
                         [](const auto& info) { return std::string(info.param.name); });

// Counts the steps of its stage that are under way, so that a test sees stages at work side by side.
struct Meter {
  std::mutex mutex;
  std::map<int32_t, uint64_t> step_of_stage;
  int32_t most_apart = 0;
};

class MeteredRunner : public StepRunner {
 public:
  MeteredRunner(std::unique_ptr<StepRunner> inner, int32_t stage, Meter* meter)
      : inner_(std::move(inner)), stage_(stage), meter_(meter) {}
  void Learn(std::span<const SampledId> sampled) override { inner_->Learn(sampled); }
  void Launch(const StepPlan& plan, PendingStep* step) override {
    {
      const std::lock_guard lock(meter_->mutex);
      meter_->step_of_stage[stage_] = plan.step_id;
      const auto apart = meter_->step_of_stage[0] - meter_->step_of_stage[1];
      meter_->most_apart = std::max(meter_->most_apart, static_cast<int32_t>(apart));
    }
    inner_->Launch(plan, step);
  }
  Status ExecuteForLogits(const StepPlan& plan, std::vector<float>* logits) override {
    return inner_->ExecuteForLogits(plan, logits);
  }
  const ModelConfig& config() const override { return inner_->config(); }

 private:
  std::unique_ptr<StepRunner> inner_;
  int32_t stage_;
  Meter* meter_;
};

TEST(ThreadsExecutorTest, StagesWorkOnDifferentStepsAtOnce) {
  Meter meter;
  const auto engine = Engine({"Pp2", {1, 2}}, [&](ModelSource s, const RunnerOptions& o, PhaseSeconds* p) {
    auto runner = MakeStepRunner(std::move(s), o, p);
    EXPECT_TRUE(runner.ok());
    return Result<std::unique_ptr<StepRunner>>(
        std::make_unique<MeteredRunner>(std::move(runner).value(), o.ranks.topology.pp_rank(), &meter));
  });
  RunAll(engine.get());
  EXPECT_GE(meter.most_apart, 1);
}

// A runner that does something else at its fourth step.
enum class Fault : uint8_t { kThrows, kFails, kHangs };

struct Trap {
  std::mutex mutex;
  std::condition_variable changed;
  bool open = false;
  void Wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return open; });
  }
  void Open() {
    const std::lock_guard lock(mutex);
    open = true;
    changed.notify_all();
  }
};

class FaultyRunner : public StepRunner {
 public:
  FaultyRunner(std::unique_ptr<StepRunner> inner, Fault fault, std::shared_ptr<Trap> trap)
      : inner_(std::move(inner)), fault_(fault), trap_(std::move(trap)) {}
  void Learn(std::span<const SampledId> sampled) override { inner_->Learn(sampled); }
  void Launch(const StepPlan& plan, PendingStep* step) override {
    if (++steps_ < 4) return inner_->Launch(plan, step);
    if (fault_ == Fault::kThrows) throw std::runtime_error("the board is on fire");
    if (fault_ == Fault::kHangs) trap_->Wait();
    step->result.status = Status::Internal("the numbers do not add up");
  }
  Status ExecuteForLogits(const StepPlan&, std::vector<float>*) override { return Status::Ok(); }
  const ModelConfig& config() const override { return inner_->config(); }

 private:
  std::unique_ptr<StepRunner> inner_;
  Fault fault_;
  std::shared_ptr<Trap> trap_;
  int32_t steps_ = 0;
};

struct FaultCase {
  const char* name;
  ParallelSizes sizes;
  int32_t rank;
  Fault fault;
  const char* message;
};

class Faults : public ::testing::TestWithParam<FaultCase> {};

TEST_P(Faults, EndTheEngineWithTheRanksName) {
  const FaultCase& p = GetParam();
  const auto trap = std::make_shared<Trap>();
  auto engine = Engine(
      {"", p.sizes},
      [&p, trap](ModelSource s, const RunnerOptions& o, PhaseSeconds* phases) -> Result<std::unique_ptr<StepRunner>> {
        auto runner = MakeStepRunner(std::move(s), o, phases);
        if (!runner.ok() || o.ranks.topology.rank != p.rank) return runner;
        return std::unique_ptr<StepRunner>(std::make_unique<FaultyRunner>(std::move(runner).value(), p.fault, trap));
      },
      milliseconds(400));
  const auto start = std::chrono::steady_clock::now();
  for (int32_t i = 0; i < kRequests; ++i) {
    if (!engine->Add(MakeRequest(i)).ok()) break;
  }
  Status why;
  while (why.ok()) {  // until the engine has failed; what finished before is well
    const auto deltas = engine->Drain(seconds(60));
    ASSERT_FALSE(deltas.empty());
    for (const RequestDelta& d : deltas) {
      if (d.finish_reason == FinishReason::kError) why = Status(d.error_code, d.error);
    }
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(5));
  EXPECT_EQ(why.code(), StatusCode::kUnavailable);
  EXPECT_NE(why.message().find(p.message), std::string::npos) << why.message();
  EXPECT_EQ(engine->health().message(), why.message());
  EXPECT_EQ(engine->Add(MakeRequest(99)).code(), StatusCode::kUnavailable);
  engine.reset();  // with a rank that hangs: it is left behind
  trap->Open();
}

const FaultCase kFaults[] = {
    {"ThrowsInTp", {3}, 2, Fault::kThrows, "rank 2 (tp 2, pp 0): the board is on fire"},
    {"ThrowsOutputRank", {2}, 0, Fault::kThrows, "rank 0 (tp 0, pp 0): the board is on fire"},
    {"FailsInTp", {2}, 1, Fault::kFails, "rank 1 (tp 1, pp 0): the numbers do not add up"},
    {"FailsInStage0", {2, 2}, 1, Fault::kFails, "rank 1 (tp 1, pp 0): the numbers do not add up"},
    {"HangsInTp", {2}, 1, Fault::kHangs, "rank 1 (tp 1, pp 0) did not "},
    {"HangsInStage0", {2, 2}, 1, Fault::kHangs, "rank 1 (tp 1, pp 0) did not "},
    {"HangsInLastStage", {1, 2}, 1, Fault::kHangs, "rank 1 (tp 0, pp 1) did not finish a step within 400 ms"},
};
INSTANTIATE_TEST_SUITE_P(Each, Faults, ::testing::ValuesIn(kFaults),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(ThreadsExecutorTest, ARankThatCannotLoadIsNamedAndTheOthersEnd) {
  const auto failing = [](ModelSource s, const RunnerOptions& o,
                          PhaseSeconds* p) -> Result<std::unique_ptr<StepRunner>> {
    if (o.ranks.topology.rank == 1) return Status::ResourceExhausted("no room");
    return MakeStepRunner(std::move(s), o, p);
  };
  const auto executor = MakeThreadsExecutor(Source(), Options({"", {3}}), {{3}, seconds(60), failing}, nullptr);
  EXPECT_EQ(executor.status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(executor.status().message(), "rank 1 (tp 1, pp 0): no room");
}

TEST(ThreadsExecutorTest, EndsWithPlansInFlight) {
  const Mode mode{"", {2, 2}};
  auto executor = MakeThreadsExecutor(Source(), Options(mode), {mode.sizes, seconds(60), nullptr}, nullptr);
  ASSERT_TRUE(executor.ok()) << executor.status().ToString();
  for (RequestId id = 1; id <= 3; ++id) {
    StepPlan plan;
    plan.step_id = id;
    NewSequence s;
    s.id = id;
    s.tokens = {1, 2, 3};
    s.num_prompt_tokens = 3;
    s.block_ids = {{static_cast<BlockId>(id)}};
    plan.added.push_back(std::move(s));
    plan.rows.push_back({id, 3, true});
    plan.total_tokens = 3;
    (*executor)->Submit(plan);  // which ends at once: the executor has a copy
  }
  StepResult result;
  (*executor)->Wait(&result);
  EXPECT_TRUE(result.status.ok()) << result.status.ToString();
  EXPECT_EQ(result.rows.size(), 1u);
  executor->reset();
  EXPECT_EQ(executor->get(), nullptr);
}

}  // namespace
}  // namespace fastllm::runtime
