// The process of a rank for processes_executor_test.cc: the tiny model of executor_support.h. The engine's text is a
// Mode in numbers ("async cache blocks budget"), and a fault: the rank that has it, and what it does at its fourth
// step.
#include <unistd.h>

#include <sstream>
#include <stdexcept>

#include "runtime/executor/rank_worker.h"
#include "runtime/runner/make_runner.h"
#include "tests/runtime/model/executor_support.h"

namespace fastllm::runtime {
namespace {

class FaultyRunner : public StepRunner {
 public:
  FaultyRunner(std::unique_ptr<StepRunner> inner, std::string fault)
      : inner_(std::move(inner)), fault_(std::move(fault)) {}
  void Learn(std::span<const SampledId> sampled) override { inner_->Learn(sampled); }
  void Launch(const StepPlan& plan, PendingStep* step) override {
    if (++steps_ < 4) return inner_->Launch(plan, step);
    if (fault_ == "throws") throw std::runtime_error("the board is on fire");
    if (fault_ == "hangs") pause();
    if (fault_ == "exits") _exit(7);
    if (fault_ != "strays") {
      step->result.status = Status::Internal("the numbers do not add up");
      return;
    }
    StepPlan other = plan;  // another step than the other ranks'
    ++other.step_id;
    inner_->Launch(other, step);
  }
  Status ExecuteForLogits(const StepPlan&, std::vector<float>*) override { return Status::Ok(); }
  const ModelConfig& config() const override { return inner_->config(); }

 private:
  std::unique_ptr<StepRunner> inner_;
  std::string fault_;
  int32_t steps_ = 0;
};

Result<std::unique_ptr<StepRunner>> MakeRunner(const RankJob& job, const Ranks& ranks, PhaseSeconds* phases) {
  std::istringstream words(job.engine);
  testing::ranked::Mode mode{"", job.memory.hub.sizes};
  int32_t rank = -1;
  std::string fault;
  words >> mode.async >> mode.prefix_cache >> mode.num_blocks >> mode.budget >> rank >> fault;
  if (rank == ranks.topology.rank && fault == "unloadable") return Status::ResourceExhausted("no room");
  RunnerOptions options = testing::ranked::Options(mode);
  options.ranks = ranks;
  FASTLLM_ASSIGN_OR_RETURN(auto runner, MakeStepRunner(testing::ranked::Source(), options, phases));
  if (rank != ranks.topology.rank) return runner;
  return std::unique_ptr<StepRunner>(std::make_unique<FaultyRunner>(std::move(runner), fault));
}

}  // namespace
}  // namespace fastllm::runtime

int main() {
  fastllm::runtime::RankWorkerOptions options;
  options.make_runner = fastllm::runtime::MakeRunner;
  return fastllm::runtime::ServeRank(3, options);
}
