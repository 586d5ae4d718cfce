#include "runtime/executor/node_agent.h"

#include <atomic>
#include <memory>
#include <string_view>
#include <thread>
#include <utility>

#include "runtime/executor/node_greeting.h"
#include "runtime/executor/node_link.h"
#include "runtime/executor/node_team.h"

namespace fastllm::runtime {
namespace {

using Clock = std::chrono::steady_clock;

// For the driver, which has been reached, to challenge and to answer.
constexpr std::chrono::seconds kGreeting{10};

// One engine of the driver.
class Session {
 public:
  Session(NodeLink link, const NodeAgentOptions& options) : link_(std::move(link)), options_(options) {}
  ~Session() {
    ending_ = true;
    if (team_ != nullptr) team_->team().Ring(team_->node().count);
    if (reporter_.joinable()) reporter_.join();
  }

  // Ok: the engine has ended in order.
  Status Run() {
    FASTLLM_RETURN_IF_ERROR(IntroduceNode(&link_, options_.token, options_.node, Clock::now() + kGreeting));
    NodeFrame kind{};
    std::string body;
    for (;;) {
      if (const Status status = link_.Receive(&kind, &body); !status.ok()) {
        if (team_ != nullptr) team_->Fail(status);
        return failed_.load() ? Status::Unavailable("a rank of this node has failed") : status;
      }
      switch (kind) {
        case NodeFrame::kJob: FASTLLM_RETURN_IF_ERROR(Begin(body)); break;
        case NodeFrame::kOrder:
          // A team that is broken has said so.
          if (team_ != nullptr) static_cast<void>(team_->Post(body));
          break;
        case NodeFrame::kEnd: return Status::Ok();
        default: return Status::DataLoss("node 0 sent a frame of another kind");
      }
    }
  }

 private:
  Status Begin(const std::string& text) {
    NodeTeamOptions team;
    FASTLLM_ASSIGN_OR_RETURN(team.job, RankJobFromJson(text));
    team.job.interface_address = link_.local_address();
    if (options_.num_threads > 0) {
      team.job.num_threads = std::max(1, options_.num_threads / team.job.memory.hub.node.count);
    }
    team.command = options_.command;
    FASTLLM_ASSIGN_OR_RETURN(team_, NodeTeam::Start(team, [this](const Status& why) {
                               failed_ = true;
                               static_cast<void>(link_.Send(
                                   NodeFrame::kFailure, NumberHead(static_cast<uint32_t>(why.code())), why.message()));
                             }));
    reporter_ = std::thread([this] { Report(); });
    return Status::Ok();
  }

  // Carries reports until the end or a failure, of which the driver hears by itself.
  void Report() {
    const int32_t count = team_->node().count;
    std::string report;
    for (;;) {
      for (int32_t member = 0; member < count; ++member) {
        while (team_->HasReport(member)) {
          if (!team_->TakeReport(member, &report).ok()) return;
          const std::string head = NumberHead(static_cast<uint32_t>(team_->node().first + member));
          if (!link_.Send(NodeFrame::kReport, head, report).ok()) return;
        }
      }
      if (ending_) return;
      const auto any = [&] {
        if (ending_) return true;
        for (int32_t member = 0; member < count; ++member) {
          if (team_->HasReport(member)) return true;
        }
        return false;
      };
      if (!team_->team().Await(any, ShmTeam::kNobody, kNoDeadline).ok()) return;
    }
  }

  NodeLink link_;
  const NodeAgentOptions& options_;
  std::atomic<bool> ending_{false};
  std::atomic<bool> failed_{false};
  std::unique_ptr<NodeTeam> team_;  // ends after the reporter, which the destructor joins
  std::thread reporter_;
};

}  // namespace

Status RunNodeAgent(const NodeAgentOptions& options) {
  for (;;) {
    FASTLLM_ASSIGN_OR_RETURN(
        NodeLink link, NodeLink::Connect(options.master_addr, options.master_port, Clock::now() + options.patience));
    const Status status = Session(std::move(link), options).Run();
    if (status.ok() || !options.come_again || status.code() != StatusCode::kUnavailable) return status;
  }
}

}  // namespace fastllm::runtime
