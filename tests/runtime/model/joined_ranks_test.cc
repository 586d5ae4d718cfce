// Ranks in threads whose communicators are put in by RankThreadsOptions::join, as those of devices would be: small sums
// of a model through boxes, the tokens of one rank, and a failure that ends those who wait in a sum.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <utility>
#include <vector>

#include "runtime/executor/local_executor.h"
#include "runtime/executor/threads_executor.h"
#include "runtime/runner/device_runner.h"
#include "runtime/runner/make_runner.h"
#include "runtime/runner/rank_team.h"
#include "tests/runtime/model/executor_support.h"
#include "tests/runtime/model/peer_support.h"

namespace fastllm::runtime {
namespace {

using std::chrono::seconds;
using testing::Counting;
using testing::ranked::MakeRequest;
using testing::ranked::Mode;
using testing::ranked::Options;
using testing::ranked::RunAll;
using testing::ranked::Source;

// Throws at its fourth step, if it is to; counts its end.
class Watched : public StepRunner {
 public:
  Watched(std::unique_ptr<StepRunner> inner, bool throws, std::atomic<int>* ended)
      : inner_(std::move(inner)), throws_(throws), ended_(ended) {}
  ~Watched() override { ++*ended_; }
  void Learn(std::span<const SampledId> sampled) override { inner_->Learn(sampled); }
  void Launch(const StepPlan& plan, PendingStep* step) override {
    if (throws_ && ++steps_ == 4) throw std::runtime_error("the board is on fire");
    inner_->Launch(plan, step);
  }
  Status ExecuteForLogits(const StepPlan& plan, std::vector<float>* logits) override {
    return inner_->ExecuteForLogits(plan, logits);
  }
  const ModelConfig& config() const override { return inner_->config(); }

 private:
  std::unique_ptr<StepRunner> inner_;
  const bool throws_;
  std::atomic<int>* ended_;
  int steps_ = 0;
};

// Sums in pieces, from two rows on: one call after another of rank 1's ends of pieces until the board is on fire there.
std::atomic<int> calls_left{0};

void PieceNormOnFire(const ops::PeerPieceNormParams& p, const ops::OpContext& context) {
  if (p.rank == 1 && --calls_left < 0) throw std::runtime_error("the board is on fire");
  testing::PieceNormOnThreads<float>(p, context);
}

PeerOptions InPieces(int32_t rank) {
  PeerOptions o = testing::PeersOnThreads(rank);
  o.rows = Options({"", {}}).sched.max_num_batched_tokens;
  o.row_bytes = Source().config.hidden_size * static_cast<int64_t>(sizeof(float));
  o.least_cut_rows = 2;
  o.piece_rows = 3;
  o.piece_norm_of = [](ops::DType) { return &PieceNormOnFire; };
  return o;
}

struct Witness {
  std::mutex mutex;
  std::vector<std::shared_ptr<Counting>> rests;
  std::atomic<int> ended{0};
};

std::unique_ptr<EngineCore> Engine(const Mode& mode, Witness* witness, bool device_runner, int32_t throws = -1,
                                   PeerOptions (*peers)(int32_t) = testing::PeersOnThreads) {
  RankThreadsOptions threads;
  threads.sizes = mode.sizes;
  threads.timeout = seconds(60);
  threads.join = [witness, peers](Ranks* ranks, const AnnounceFn&) -> Status {
    EXPECT_EQ(ranks->host, ranks->tensor);
    const auto rest = std::make_shared<Counting>(ranks->tensor);
    {
      const std::lock_guard lock(witness->mutex);
      witness->rests.push_back(rest);
    }
    FASTLLM_ASSIGN_OR_RETURN(ranks->tensor, MakePeerCommunicator(*ranks->host, rest, peers(ranks->topology.tp_rank())));
    return Status::Ok();
  };
  threads.make_runner = [=](ModelSource source, const RunnerOptions& options, PhaseSeconds* phases) {
    auto runner = MakeStepRunner(std::move(source), options, phases, device_runner);
    EXPECT_TRUE(runner.ok()) << runner.status().ToString();
    const bool own = options.ranks.topology.rank == throws;
    return Result<std::unique_ptr<StepRunner>>(
        std::make_unique<Watched>(std::move(runner).value(), own, &witness->ended));
  };
  RunnerOptions options = Options(mode);
  options.enforce_eager = peers == InPieces;  // sums of captured steps, and of those that may become so, are whole
  auto executor = MakeThreadsExecutor(Source(), options, threads, nullptr);
  EXPECT_TRUE(executor.ok()) << executor.status().ToString();
  return std::make_unique<EngineCore>(options.sched, options.kv, std::move(executor).value(), nullptr);
}

class Joined : public ::testing::TestWithParam<std::pair<int32_t, bool>> {};

TEST_P(Joined, GiveTheTokensOfOneRank) {
  const auto [size, device_runner] = GetParam();
  const Mode alone{"One", {}};
  const RunnerOptions options = Options(alone);
  auto executor = MakeLocalExecutor(Source(), options, nullptr);
  ASSERT_TRUE(executor.ok());
  EngineCore one(options.sched, options.kv, std::move(executor).value(), nullptr);
  const auto wanted = RunAll(&one);
  Witness witness;
  auto engine = Engine({"", {size}}, &witness, device_runner);
  const auto got = RunAll(engine.get());
  for (const auto& [id, o] : wanted) EXPECT_EQ(got.at(id).ids, o.ids) << "request " << id;
  for (const auto& rest : witness.rests) EXPECT_GT(rest->sums, 0);  // of prompts; those of single tokens are small
  engine.reset();
  EXPECT_EQ(witness.ended, size);
}
INSTANTIATE_TEST_SUITE_P(Each, Joined, ::testing::Values(std::pair(2, false), std::pair(3, false), std::pair(2, true)));

// Rows that are greedy and ask for nothing else: the runner of devices leaves the logits where they are.
TEST(JoinedRanksTest, RanksPickGreedyTokensFromTheirPartsOfTheLogits) {
  const auto run = [](EngineCore* engine) {
    for (int32_t i = 0; i < 8; ++i) {
      const auto request = MakeRequest(i);
      request->sampling = {};
      request->sampling.temperature = 0.0f;
      request->sampling.detokenize = false;
      EXPECT_TRUE(engine->Add(request).ok());
    }
    return testing::ranked::Collect(engine, 8);
  };
  const RunnerOptions options = Options({"One", {}});
  auto executor = MakeLocalExecutor(Source(), options, nullptr);
  ASSERT_TRUE(executor.ok());
  EngineCore one(options.sched, options.kv, std::move(executor).value(), nullptr);
  const auto wanted = run(&one);
  for (const int32_t size : {2, 3}) {
    testing::num_picks = 0;
    Witness witness;
    const auto got = run(Engine({"", {size}}, &witness, /*device_runner=*/true).get());
    for (const auto& [id, o] : wanted) EXPECT_EQ(got.at(id).ids, o.ids) << "request " << id;
    EXPECT_GE(testing::num_picks, size * 6);
  }
}

// The reason why the engine has failed, of requests that were given to it.
Status WhyItFailed(EngineCore* engine) {
  for (int32_t i = 0; i < 3; ++i) {
    if (!engine->Add(MakeRequest(i)).ok()) break;
  }
  Status why;
  for (auto deltas = engine->Drain(seconds(60)); !deltas.empty() && why.ok(); deltas = engine->Drain(seconds(60))) {
    for (const RequestDelta& d : deltas) {
      if (d.finish_reason == FinishReason::kError) why = {d.error_code, d.error};
    }
  }
  return why;
}

TEST(JoinedRanksTest, AFailureEndsThoseWhoWaitInASum) {
  Witness witness;
  auto engine = Engine({"", {3}}, &witness, false, 1);
  const Status why = WhyItFailed(engine.get());
  EXPECT_NE(why.message().find("rank 1 (tp 1, pp 0): the board is on fire"), std::string::npos) << why.message();
  engine.reset();
  EXPECT_EQ(witness.ended, 3);  // none is left behind
}

TEST(JoinedRanksTest, StepsInPiecesGiveTheTokensOfWholeOnes) {
  calls_left = 1 << 30;
  Witness whole, cut;
  const Mode mode{"", {2}};
  const auto wanted = RunAll(Engine(mode, &whole, /*device_runner=*/true).get());
  testing::num_pieces = 0;
  const auto got = RunAll(Engine(mode, &cut, /*device_runner=*/true, -1, InPieces).get());
  for (const auto& [id, o] : wanted) EXPECT_EQ(got.at(id).ids, o.ids) << "request " << id;
  EXPECT_GE(testing::num_pieces, 2 * 2 * 2 * Source().config.num_layers);  // ranks, pieces, sums of a layer: a step's
}

// Wherever in a step: in the first piece of a sum and in the second.
TEST(JoinedRanksTest, ARankThatFailsWithinAPieceEndsTheOther) {
  for (const int calls : {0, 1, 2, 7}) {
    calls_left = calls;
    Witness witness;
    auto engine = Engine({"", {2}}, &witness, /*device_runner=*/true, -1, InPieces);
    const auto begin = std::chrono::steady_clock::now();
    const Status why = WhyItFailed(engine.get());
    EXPECT_NE(why.message().find("rank 1 (tp 1, pp 0): step failed: the board is on fire"), std::string::npos)
        << why.message();
    EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(30));  // and not after the timeout of a step
    engine.reset();
    EXPECT_EQ(witness.ended, 2);
  }
}

// Nothing may be asked of a device once others wait for it, so not for the first request with penalties either.
TEST(JoinedRanksTest, TalliesAreThereBeforeTheFirstStep) {
  auto hub = MemoryHub::Create({2}, seconds(60));
  ASSERT_TRUE(hub.ok());
  RankTeam team(std::move(hub).value(), 2);
  std::vector<std::unique_ptr<DeviceRunner>> runners(2);
  const auto load = [&](int32_t rank) -> Status {
    RunnerOptions options = Options({"", {2}});
    options.ranks = team.hub().RanksOf(rank);
    options.ranks.host = options.ranks.tensor;
    FASTLLM_ASSIGN_OR_RETURN(runners[rank], DeviceRunner::Create(Source(), options, nullptr));
    return Status::Ok();
  };
  ASSERT_TRUE(team.Run(load, seconds(60)).ok());
  for (const auto& runner : runners) EXPECT_TRUE(runner->has_tallies());
  const auto end = [&](int32_t rank) {
    runners[rank].reset();
    return Status::Ok();
  };
  ASSERT_TRUE(team.Run(end, seconds(60)).ok());
  auto alone = DeviceRunner::Create(Source(), Options({"One", {}}), nullptr);
  ASSERT_TRUE(alone.ok()) << alone.status().ToString();
  EXPECT_FALSE((*alone)->has_tallies());  // no one waits for it
}

TEST(JoinedRanksTest, OneThatCannotJoinIsNamed) {
  RankThreadsOptions threads;
  threads.sizes = {3};
  threads.join = [](Ranks* ranks, const AnnounceFn&) {
    return ranks->topology.rank == 2 ? Status::Unavailable("no such device") : Status::Ok();
  };
  const auto executor = MakeThreadsExecutor(Source(), Options({"", {3}}), threads, nullptr);
  EXPECT_EQ(executor.status().message(), "rank 2 (tp 2, pp 0): no such device");
}

}  // namespace
}  // namespace fastllm::runtime
