#include "runtime/executor/processes_executor.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>

#include "core/base/check.h"
#include "runtime/comm/c10d_communicator.h"
#include "runtime/executor/node_team.h"
#include "runtime/executor/rank_messages.h"
#include "runtime/executor/remote_nodes.h"

namespace fastllm::runtime {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kCausePatience{1};

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

  ~ProcessesExecutor() override { End(); }

  Status Start(PhaseSeconds* phases) {
    const RankNodes& nodes = options_.nodes;
    const int32_t elsewhere = nodes.here ? nodes.count - 1 : nodes.count;
    if (elsewhere > 0) {
      NodeDoorOptions door;
      door.first = nodes.here ? 1 : 0;
      door.count = elsewhere;
      door.token = nodes.token;
      door.on_refused = nodes.on_refused;
      FASTLLM_ASSIGN_OR_RETURN(
          remote_, RemoteNodes::Accept(nodes.master_addr, nodes.master_port, std::move(door), options_.timeout));
      FASTLLM_ASSIGN_OR_RETURN(store_, ServeGroupStore(options_.timeout));
    }
    FASTLLM_ASSIGN_OR_RETURN(team_, NodeTeam::Start({JobOf(nodes.here ? 0 : -1), options_.command},
                                                    [this](const Status& why) { HangUp(why); }));
    if (remote_ != nullptr) {
      std::vector<RankJob> jobs;
      for (int32_t node = nodes.here ? 1 : 0; node < nodes.count; ++node) jobs.push_back(JobOf(node));
      const auto on_failure = [this](const Status& why) {
        HangUp(why);
        team_->Fail(why);
      };
      FASTLLM_RETURN_IF_ERROR(remote_->Begin(jobs, [this] { team_->team().Ring(team_->node().count); }, on_failure));
    }
    const auto all_loaded = [this] { return std::ranges::all_of(ranks_, &Rank::loaded); };
    FASTLLM_RETURN_IF_ERROR(AwaitReports(all_loaded, std::nullopt));
    if (phases != nullptr) phases->insert(phases->end(), phases_.begin(), phases_.end());
    return Status::Ok();
  }

  void WatchFailure(std::function<void(const Status&)> watcher) override { failure_.Watch(std::move(watcher)); }

  void Close() override { End(); }

  void Submit(const StepPlan& plan) override {
    FASTLLM_CHECK(plans_.submitted - plans_.taken <= static_cast<uint64_t>(options_.sizes.pipeline),
                  "more plans in flight than the executor has places");
    ++plans_.submitted;
    // The error of a team that is broken comes with Wait().
    const std::string order = EncodeOrder(learned_, plan);
    static_cast<void>(team_->Post(order));
    if (remote_ != nullptr) static_cast<void>(remote_->Post(order));
    learned_.clear();
  }

  void Wait(StepResult* result) override {
    *result = {};
    if (plans_.taken == plans_.submitted) {
      result->status = Status::FailedPrecondition("Wait() without a plan in flight");
      return;
    }
    const auto passed = [this] { return std::ranges::min_element(ranks_, {}, &Rank::done)->done > plans_.taken; };
    result->status = AwaitReports(passed, options_.timeout);
    if (!result->status.ok()) return;
    std::swap(*result, results_.front());
    results_.pop_front();
    ++plans_.taken;
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

  // What the first rank of a node is told; -1: of no node, for a driver without ranks.
  RankJob JobOf(int32_t node) const {
    RankJob job;
    ShmHubPlan& hub = job.memory.hub;
    const int32_t each = topology_.world() / options_.nodes.count;
    hub.sizes = options_.sizes;
    hub.node = node < 0 ? NodeRanks{0, 0} : NodeRanks{node * each, each};
    hub.message_bytes = options_.message_bytes;
    hub.timeout = options_.timeout;
    job.rank = hub.node.first;
    job.engine = options_.engine;
    job.num_threads = std::max(1, options_.num_threads / each);
    job.store_host = job.interface_address = options_.nodes.master_addr;
    if (store_ != nullptr) job.store_port = store_->port();
    return job;
  }

  // From whichever thread; what waits here is woken by the team, which breaks.
  void HangUp(const Status& why) {
    failure_.Set(why);
    if (remote_ != nullptr) remote_->Hangup();
  }

  void End() {
    if (remote_ != nullptr) remote_->End(/*orderly=*/failure_.why().ok() && team_ != nullptr);
    team_.reset();  // its thread may hang up as well
  }

  bool HasReport() const {
    for (int32_t member = 0; member < team_->node().count; ++member) {
      if (team_->HasReport(member)) return true;
    }
    return remote_ != nullptr && remote_->HasReport();
  }

  Status TakeReports() {
    const NodeRanks& node = team_->node();
    for (int32_t member = 0; member < node.count; ++member) {
      while (team_->HasReport(member)) {
        const int32_t rank = node.first + member;
        if (const Status status = team_->TakeReport(member, &bytes_); !status.ok()) return Fail(rank, status);
        FASTLLM_RETURN_IF_ERROR(Handle(rank, bytes_));
      }
    }
    while (remote_ != nullptr && remote_->HasReport()) {
      const RemoteReport report = remote_->TakeReport();
      if (report.rank < 0 || report.rank >= topology_.world()) {
        return Fail(0, Status::DataLoss("a node reports for rank " + std::to_string(report.rank)));
      }
      FASTLLM_RETURN_IF_ERROR(Handle(report.rank, report.bytes));
    }
    return Status::Ok();
  }

  // Takes what ranks report until done(), or an error. The patience begins anew with each report.
  Status AwaitReports(const std::function<bool()>& done, std::optional<std::chrono::milliseconds> patience) {
    for (;;) {
      FASTLLM_RETURN_IF_ERROR(TakeReports());
      if (done()) return Status::Ok();
      const ShmDeadline deadline = patience ? Clock::now() + *patience : kNoDeadline;
      const Status status = team_->team().Await([this] { return HasReport(); }, ShmTeam::kNobody, deadline);
      if (status.ok()) continue;
      if (status.code() == StatusCode::kDeadlineExceeded && status.message().empty()) return Blame();
      return Fail(0, status);
    }
  }

  Status Handle(int32_t rank, const std::string& bytes) {
    Result<RankReport> report = DecodeReport(bytes);
    if (!report.ok()) return Fail(rank, report.status());
    if (!report->result.status.ok()) {
      if (remote_ != nullptr && report->result.status.code() == StatusCode::kUnavailable) AwaitCause();
      return Fail(rank, report->result.status);
    }
    Rank& own = ranks_[static_cast<size_t>(rank)];
    if (report->kind == RankReport::Kind::kLoaded) {
      own.loaded = true;
      if (rank == 0) phases_ = std::move(report->phases);
      return Status::Ok();
    }
    ++own.done;
    if (rank == topology_.output_rank()) results_.push_back(std::move(report->result));
    return Status::Ok();
  }

  // A rank that has lost another across nodes may say so before the other's node does, which knows why.
  void AwaitCause() {
    const auto never = [] { return false; };
    static_cast<void>(team_->team().Await(never, ShmTeam::kNobody, Clock::now() + kCausePatience));
  }

  // The first failure stays; ends all ranks.
  Status Fail(int32_t rank, const Status& why) {
    const bool named = why.message().starts_with("rank ");
    HangUp(named ? why : Status(why.code(), topology_.NameOf(rank) + ": " + why.message()));
    team_->Fail(failure_.why());
    return failure_.why();
  }

  // Of a node elsewhere the rank that is behind is known, and not whom it waits for.
  Status Blame() {
    auto culprit = static_cast<int32_t>(std::ranges::min_element(ranks_, {}, &Rank::done) - ranks_.begin());
    const NodeRanks& node = team_->node();
    if (node.Has(culprit)) culprit = node.first + team_->team().Culprit(culprit - node.first);
    return Fail(culprit,
                Status(StatusCode::kDeadlineExceeded, topology_.NameOf(culprit) + " did not finish a step within " +
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
  struct {
    uint64_t submitted = 0;
    uint64_t taken = 0;
  } plans_;
  std::unique_ptr<GroupStore> store_;
  std::unique_ptr<RemoteNodes> remote_;
  std::unique_ptr<NodeTeam> team_;  // last: its thread uses the rest
};

}  // namespace

Result<std::unique_ptr<Executor>> MakeProcessesExecutor(const RankProcessesOptions& options, PhaseSeconds* phases) {
  auto executor = std::make_unique<ProcessesExecutor>(options);
  FASTLLM_RETURN_IF_ERROR(executor->Start(phases));
  return std::unique_ptr<Executor>(std::move(executor));
}

}  // namespace fastllm::runtime
