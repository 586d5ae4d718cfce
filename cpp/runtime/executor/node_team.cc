#include "runtime/executor/node_team.h"

#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "runtime/executor/rank_messages.h"

namespace fastllm::runtime {
namespace {

using Clock = std::chrono::steady_clock;

// How long ranks that are told to end may take before they are killed.
constexpr std::chrono::seconds kFarewell{3};

}  // namespace

Result<std::unique_ptr<NodeTeam>> NodeTeam::Start(const NodeTeamOptions& options, OnFailure on_failure) {
  const int32_t count = options.job.memory.hub.node.count;
  if (count >= kMostTeamMembers) {
    return Status::InvalidArgument(std::to_string(count) + " ranks on a node; the limit is " +
                                   std::to_string(kMostTeamMembers - 1));
  }
  FASTLLM_ASSIGN_OR_RETURN(SharedMemory memory, SharedMemory::Create("fastllm-ranks", options.job.memory.Bytes()));
  std::unique_ptr<NodeTeam> team(new NodeTeam(options, std::move(memory), std::move(on_failure)));
  if (team->wake_.get() < 0) return Status::ResourceExhausted("no descriptor for the ranks' processes");
  team->thread_ = std::thread([team = team.get()] { team->Live(); });
  return team;
}

NodeTeam::NodeTeam(const NodeTeamOptions& options, SharedMemory memory, OnFailure on_failure)
    : options_(options),
      on_failure_(std::move(on_failure)),
      memory_(std::move(memory), options.job.memory, options.job.memory.driver()),
      wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

NodeTeam::~NodeTeam() {
  if (!thread_.joinable()) return;
  ending_ = true;
  // Ranks that stand still do not make room; they are killed.
  const std::string order = EncodeEnd();
  const std::string_view part = order;
  const bool waiting = node().count > 0;
  if (waiting && (!team().broken().ok() || !memory_.plans().Write({&part, 1}, Clock::now() + kFarewell).ok())) {
    killing_ = true;
  }
  Raise();
  thread_.join();
}

void NodeTeam::Raise() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
}

Status NodeTeam::Post(std::string_view order) {
  FASTLLM_RETURN_IF_ERROR(team().broken());
  if (node().count == 0) return Status::Ok();
  return memory_.plans().Write({&order, 1}, kNoDeadline);
}

void NodeTeam::Fail(const Status& why) {
  killing_ = true;
  team().Break(why);
  Raise();
}

// Here and not in Start(): a process is told to end with the thread that started it.
void NodeTeam::Live() {
  pthread_setname_np(pthread_self(), "fastllm-ranks");
  if (const Status status = StartAll(); !status.ok()) {
    on_failure_(status);  // before those who wait wake up
    Fail(status);
  }
  ended_.assign(children_.size(), false);
  Watch();
}

Status NodeTeam::StartAll() {
  for (int32_t member = 0; member < node().count; ++member) {
    RankJob job = options_.job;
    job.rank = node().first + member;
    FASTLLM_ASSIGN_OR_RETURN(ChildProcess child, ChildProcess::Start(options_.command));
    children_.push_back(std::move(child));
    // One that has ended already shows in Watch().
    static_cast<void>(SendJob(children_.back().socket(), job, memory_.fd()));
  }
  return Status::Ok();
}

void NodeTeam::CollectEnded(const std::vector<pollfd>& watched) {
  for (size_t i = 0; i < children_.size(); ++i) {
    if (ended_[i] || (watched[i].revents & POLLIN) == 0) continue;
    ended_[i] = true;
    const std::string how = children_[i].Reap();
    if (ending_ || killing_) continue;
    const RankTopology topology{options_.job.memory.hub.sizes, node().first + static_cast<int32_t>(i)};
    const Status why =
        Status::Unavailable(topology.name() + ", process " + std::to_string(children_[i].pid()) + ", " + how);
    on_failure_(why);
    Fail(why);
  }
}

void NodeTeam::Watch() {
  Clock::time_point kill_at = Clock::time_point::max();
  bool killed = false;
  while (!ending_ || std::ranges::count(ended_, true) < std::ssize(ended_)) {
    std::vector<pollfd> watched;
    for (size_t i = 0; i < children_.size(); ++i)
      watched.push_back({ended_[i] ? -1 : children_[i].end_fd(), POLLIN, 0});
    watched.push_back({wake_.get(), POLLIN, 0});
    const bool patient = kill_at != Clock::time_point::max() && !killed;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(kill_at - Clock::now()).count();
    if (poll(watched.data(), watched.size(), patient ? static_cast<int>(std::max<int64_t>(0, left)) : -1) < 0) continue;
    uint64_t drained = 0;
    [[maybe_unused]] const ssize_t got = read(wake_.get(), &drained, sizeof(drained));
    CollectEnded(watched);
    if (ending_ && kill_at == Clock::time_point::max()) kill_at = Clock::now() + kFarewell;
    if (killed || (!killing_ && Clock::now() < kill_at)) continue;
    killed = true;
    for (size_t i = 0; i < children_.size(); ++i) {
      if (!ended_[i]) children_[i].Kill();
    }
  }
}

}  // namespace fastllm::runtime
