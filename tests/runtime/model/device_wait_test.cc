// Ranks in threads whose devices do not come to the end of a step: one that hangs while the others only wait for it,
// and one that breaks down. The devices are made up: the steps are computed on the CPU.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "runtime/executor/threads_executor.h"
#include "runtime/runner/make_runner.h"
#include "tests/runtime/model/executor_support.h"
#include "tests/runtime/model/idle_device.h"
#include "tests/runtime/model/peer_support.h"

namespace fastllm::runtime {
namespace {

using std::chrono::seconds;
using testing::ranked::MakeRequest;
using testing::ranked::Mode;
using testing::ranked::Options;
using testing::ranked::Source;

enum class Fault { kHangs, kBreaks };

// What has come of the step on the device of each rank. An event is the number of its rank, and one.
class Board : public testing::IdleDevice {
 public:
  Board(int32_t culprit, Fault fault) : culprit_(culprit), fault_(fault) {}

  bool IsDone(void* event) const override {
    if (!trouble) return true;
    if (reinterpret_cast<intptr_t>(event) - 1 != culprit_) return stopped;
    FASTLLM_CHECK(fault_ == Fault::kHangs, "an illegal memory access was encountered");
    return false;
  }

  std::atomic<bool> trouble{false};
  std::atomic<bool> stopped{false};  // those that wait for others have been told not to

 private:
  const int32_t culprit_;
  const Fault fault_;
};

// Steps whose tokens come with an event of the board; its third one is in trouble.
class OnBoard : public StepRunner {
 public:
  OnBoard(std::unique_ptr<StepRunner> inner, int32_t rank, Board* board)
      : inner_(std::move(inner)), rank_(rank), board_(board) {}
  void Learn(std::span<const SampledId> sampled) override { inner_->Learn(sampled); }
  void Launch(const StepPlan& plan, PendingStep* step) override {
    if (++steps_ == 3) board_->trouble = true;
    inner_->Launch(plan, step);
    std::vector<int32_t>& tokens = tokens_[steps_ % 3];
    tokens.clear();
    for (const SampledRow& row : step->result.rows) tokens.push_back(row.tokens.empty() ? 0 : row.tokens[0]);
    tokens.push_back(0);  // so that there is something to point at
    step->device = board_;
    step->event = reinterpret_cast<void*>(static_cast<intptr_t>(rank_ + 1));
    step->tokens = tokens.data();
  }
  Status ExecuteForLogits(const StepPlan& plan, std::vector<float>* logits) override {
    return inner_->ExecuteForLogits(plan, logits);
  }
  const ModelConfig& config() const override { return inner_->config(); }

 private:
  std::unique_ptr<StepRunner> inner_;
  const int32_t rank_;
  Board* const board_;
  std::vector<int32_t> tokens_[3];
  int steps_ = 0;
};

// An abort reaches the board.
class Stopping : public testing::Counting {
 public:
  Stopping(testing::Ptr inner, Board* board) : Counting(std::move(inner)), board_(board) {}
  void Abort(const Status& why) override {
    board_->stopped = true;
    Counting::Abort(why);
  }

 private:
  Board* const board_;
};

// How the requests of an engine over three ranks end.
Status EndOf(Board* board) {
  RankThreadsOptions threads;
  threads.sizes = {3};
  threads.timeout = std::chrono::milliseconds(300);
  threads.join = [board](Ranks* ranks, const AnnounceFn&) {
    ranks->tensor = std::make_shared<Stopping>(ranks->tensor, board);
    return Status::Ok();
  };
  threads.make_runner = [board](ModelSource source, const RunnerOptions& options, PhaseSeconds* phases) {
    auto runner = MakeStepRunner(std::move(source), options, phases);
    EXPECT_TRUE(runner.ok()) << runner.status().ToString();
    return Result<std::unique_ptr<StepRunner>>(
        std::make_unique<OnBoard>(std::move(runner).value(), options.ranks.topology.rank, board));
  };
  const RunnerOptions options = Options({"", {3}});
  auto executor = MakeThreadsExecutor(Source(), options, threads, nullptr);
  EXPECT_TRUE(executor.ok()) << executor.status().ToString();
  EngineCore engine(options.sched, options.kv, std::move(executor).value(), nullptr);
  EXPECT_TRUE(engine.Add(MakeRequest(0)).ok());
  Status why;
  for (auto deltas = engine.Drain(seconds(60)); !deltas.empty() && why.ok(); deltas = engine.Drain(seconds(60))) {
    for (const RequestDelta& d : deltas) {
      if (d.finish_reason == FinishReason::kError) why = {d.error_code, d.error};
    }
  }
  return why;
}

TEST(DeviceWaitTest, TheDeviceThatHangsIsNamedAndNotOneThatWaitsForIt) {
  for (const int32_t culprit : {0, 1, 2}) {
    Board board(culprit, Fault::kHangs);
    const auto start = std::chrono::steady_clock::now();
    const std::string name = "rank " + std::to_string(culprit) + " (tp " + std::to_string(culprit) + ", pp 0)";
    const Status why = EndOf(&board);
    EXPECT_NE(why.message().find(name + " did not finish a step on its device within 300 ms"), std::string::npos)
        << why.message();
    EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(30));
  }
}

TEST(DeviceWaitTest, ADeviceThatBreaksDownIsNamedAtOnce) {
  Board board(1, Fault::kBreaks);
  const Status why = EndOf(&board);
  EXPECT_NE(why.message().find("rank 1 (tp 1, pp 0): step failed: "), std::string::npos) << why.message();
  EXPECT_NE(why.message().find("an illegal memory access"), std::string::npos) << why.message();
}

}  // namespace
}  // namespace fastllm::runtime
