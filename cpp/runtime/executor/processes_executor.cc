#include "runtime/executor/processes_executor.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <utility>

#include "core/base/check.h"
#include "runtime/executor/node_team.h"
#include "runtime/executor/rank_messages.h"

namespace fastllm::runtime {
namespace {

using Clock = std::chrono::steady_clock;

// The first failure, from whichever thread; outlives the team's thread.
class Failure {
 public:
  void Set(const Status& why) {
    std::function<void(const Status&)> watcher;
    {
      const std::lock_guard lock(mutex_);
      if (!why_.ok()) return;
      why_ = why;
      watcher = watcher_;
    }
    if (watcher) watcher(why);
  }
  Status why() const {
    const std::lock_guard lock(mutex_);
    return why_;
  }
  void Watch(std::function<void(const Status&)> watcher) {
    Status why;
    {
      const std::lock_guard lock(mutex_);
      watcher_ = std::move(watcher);
      why = why_;
      if (why.ok()) return;
    }
    watcher_(why);
  }

 private:
  mutable std::mutex mutex_;
  Status why_;
  std::function<void(const Status&)> watcher_;
};

class ProcessesExecutor : public Executor {
 public:
  explicit ProcessesExecutor(const RankProcessesOptions& options)
      : options_(options), topology_{options.sizes, 0}, ranks_(static_cast<size_t>(options.sizes.world())) {}

  Status Start(PhaseSeconds* phases) {
    NodeTeamOptions team;
    ShmHubPlan& hub = team.job.memory.hub;
    hub.sizes = options_.sizes;
    hub.node = {0, options_.sizes.world()};
    hub.message_bytes = options_.message_bytes;
    hub.timeout = options_.timeout;
    team.job.engine = options_.engine;
    team.job.num_threads = std::max(1, options_.num_threads / options_.sizes.world());
    team.command = options_.command;
    FASTLLM_ASSIGN_OR_RETURN(team_, NodeTeam::Start(team, [this](const Status& why) { failure_.Set(why); }));
    const auto all_loaded = [this] { return std::ranges::all_of(ranks_, &Rank::loaded); };
    FASTLLM_RETURN_IF_ERROR(AwaitReports(all_loaded, std::nullopt));
    if (phases != nullptr) phases->insert(phases->end(), phases_.begin(), phases_.end());
    return Status::Ok();
  }

  void WatchFailure(std::function<void(const Status&)> watcher) override { failure_.Watch(std::move(watcher)); }

  void Close() override { team_.reset(); }

  void Submit(const StepPlan& plan) override {
    FASTLLM_CHECK(submitted_ - taken_ <= static_cast<uint64_t>(options_.sizes.pipeline),
                  "more plans in flight than the executor has places");
    ++submitted_;
    // The error of a team that is broken comes with Wait().
    static_cast<void>(team_->Post(EncodeOrder(learned_, plan)));
    learned_.clear();
  }

  void Wait(StepResult* result) override {
    *result = {};
    if (taken_ == submitted_) {
      result->status = Status::FailedPrecondition("Wait() without a plan in flight");
      return;
    }
    const auto passed = [this] { return std::ranges::min_element(ranks_, {}, &Rank::done)->done > taken_; };
    result->status = AwaitReports(passed, options_.timeout);
    if (!result->status.ok()) return;
    std::swap(*result, results_.front());
    results_.pop_front();
    ++taken_;
    if (topology_.sizes.pipeline == 1) return;
    for (const SampledRow& row : result->rows) {
      for (const TokenId token : row.tokens) learned_.push_back({result->step_id, row.id, token});
    }
  }

 private:
  struct Rank {
    uint64_t done = 0;  // plans
    bool loaded = false;
  };

  // Takes what ranks report until done(), or an error. The patience begins anew with each report.
  Status AwaitReports(const std::function<bool()>& done, std::optional<std::chrono::milliseconds> patience) {
    const int32_t count = topology_.world();
    for (;;) {
      for (int32_t rank = 0; rank < count; ++rank) {
        while (team_->HasReport(rank)) FASTLLM_RETURN_IF_ERROR(TakeReport(rank));
      }
      if (done()) return Status::Ok();
      const auto any = [&] {
        for (int32_t rank = 0; rank < count; ++rank) {
          if (team_->HasReport(rank)) return true;
        }
        return false;
      };
      const ShmDeadline deadline = patience ? Clock::now() + *patience : kNoDeadline;
      const Status status = team_->team().Await(any, ShmTeam::kNobody, deadline);
      if (status.ok()) continue;
      if (status.code() == StatusCode::kDeadlineExceeded && status.message().empty()) return Blame();
      return Fail(topology_, status);
    }
  }

  Status TakeReport(int32_t rank) {
    const RankTopology at{topology_.sizes, rank};
    if (const Status status = team_->TakeReport(rank, &bytes_); !status.ok()) return Fail(at, status);
    Result<RankReport> report = DecodeReport(bytes_);
    if (!report.ok()) return Fail(at, report.status());
    if (!report->result.status.ok()) return Fail(at, report->result.status);
    Rank& own = ranks_[static_cast<size_t>(rank)];
    if (report->kind == RankReport::Kind::kLoaded) {
      own.loaded = true;
      if (rank == 0) phases_ = std::move(report->phases);
      return Status::Ok();
    }
    ++own.done;
    if (at.gives_output()) results_.push_back(std::move(report->result));
    return Status::Ok();
  }

  // The first failure stays; ends all ranks.
  Status Fail(const RankTopology& at, const Status& why) {
    const bool named = why.message().starts_with("rank ");
    failure_.Set(named ? why : Status(why.code(), at.name() + ": " + why.message()));
    team_->Fail(failure_.why());
    return failure_.why();
  }

  Status Blame() {
    const auto slowest = std::ranges::min_element(ranks_, {}, &Rank::done) - ranks_.begin();
    const RankTopology culprit{topology_.sizes, team_->team().Culprit(static_cast<int32_t>(slowest))};
    return Fail(culprit, Status(StatusCode::kDeadlineExceeded, culprit.name() + " did not finish a step within " +
                                                                   std::to_string(options_.timeout.count()) + " ms"));
  }

  const RankProcessesOptions options_;
  const RankTopology topology_;
  Failure failure_;
  std::vector<Rank> ranks_;
  std::deque<StepResult> results_;  // of the rank that gives the output
  std::vector<SampledId> learned_;  // since the last plan
  PhaseSeconds phases_;
  std::string bytes_;
  uint64_t submitted_ = 0;
  uint64_t taken_ = 0;
  std::unique_ptr<NodeTeam> team_;  // last: its thread uses the rest
};

}  // namespace

Result<std::unique_ptr<Executor>> MakeProcessesExecutor(const RankProcessesOptions& options, PhaseSeconds* phases) {
  auto executor = std::make_unique<ProcessesExecutor>(options);
  FASTLLM_RETURN_IF_ERROR(executor->Start(phases));
  return std::unique_ptr<Executor>(std::move(executor));
}

}  // namespace fastllm::runtime
