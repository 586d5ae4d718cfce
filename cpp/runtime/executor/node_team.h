// NodeTeam: the processes of the ranks of one node, and what is said to and by them.
#pragma once

#include <poll.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/base/unique_fd.h"
#include "fastllm/status.h"
#include "runtime/executor/child_process.h"
#include "runtime/executor/node_memory.h"
#include "runtime/executor/rank_job.h"

namespace fastllm::runtime {

struct NodeTeamOptions {
  RankJob job;                       // of any of the ranks: its number is set for each
  std::vector<std::string> command;  // of their program
};

class NodeTeam {
 public:
  // Told once, from a thread of the team, why it has failed: a process that could not be started or has ended.
  using OnFailure = std::function<void(const Status& why)>;

  // Starts the processes; they load by themselves and report. kResourceExhausted without room for the shared memory.
  static Result<std::unique_ptr<NodeTeam>> Start(const NodeTeamOptions& options, OnFailure on_failure);
  // Ends the processes: in order and with patience, or at once after Fail(). None is left.
  ~NodeTeam();

  // This side's place in the team: the one thread that posts and takes waits with it.
  ShmTeam& team() { return memory_.team(); }
  const NodeRanks& node() const { return options_.job.memory.hub.node; }

  // To all ranks. An error when the team is broken.
  Status Post(std::string_view order);
  // Whether some rank has reported, and its next report, whole; kUnavailable when the team breaks meanwhile.
  bool HasReport(int32_t member) { return memory_.results(member).HasMessage(); }
  Status TakeReport(int32_t member, std::string* report) { return memory_.results(member).Read(report, kNoDeadline); }

  // Breaks the team with `why` and kills the processes. Any thread.
  void Fail(const Status& why);

 private:
  NodeTeam(const NodeTeamOptions& options, SharedMemory memory, OnFailure on_failure);
  void Live();  // of the thread: starts the processes, watches them, ends them
  Status StartAll();
  void Watch();
  void CollectEnded(const std::vector<pollfd>& watched);
  void Raise();

  const NodeTeamOptions options_;
  const OnFailure on_failure_;
  NodeMemory memory_;
  std::vector<ChildProcess> children_;  // of the thread
  std::vector<bool> ended_;
  UniqueFd wake_;  // an eventfd: something below has changed
  std::atomic<bool> ending_{false};
  std::atomic<bool> killing_{false};
  std::thread thread_;
};

}  // namespace fastllm::runtime
