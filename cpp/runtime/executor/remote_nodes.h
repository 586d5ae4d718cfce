// RemoteNodes: the driver's side of the other nodes.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "fastllm/status.h"
#include "runtime/executor/node_door.h"
#include "runtime/executor/node_link.h"
#include "runtime/executor/rank_job.h"

namespace fastllm::runtime {

struct RemoteReport {
  int32_t rank = 0;
  std::string bytes;
};

class RemoteNodes {
 public:
  // Waits for the agents of the nodes that `door` names. kDeadlineExceeded names those that have not come.
  static Result<std::unique_ptr<RemoteNodes>> Accept(const std::string& host, int32_t port, NodeDoorOptions door,
                                                     std::chrono::milliseconds patience);
  ~RemoteNodes() { End(/*orderly=*/false); }

  // Gives each node its job and begins to listen. `on_news` after each report, `on_failure` when a node fails or has
  // gone; both from threads of this, until End().
  Status Begin(const std::vector<RankJob>& jobs, std::function<void()> on_news,
               std::function<void(const Status&)> on_failure);
  Status Post(std::string_view order);
  bool HasReport() const;
  RemoteReport TakeReport();
  // Ends the connections, at which the nodes kill their ranks. Any thread, also one of this.
  void Hangup();
  // Lets the nodes end their ranks in order, or hangs up; then nothing is called any more.
  void End(bool orderly);

 private:
  struct Node {
    explicit Node(NodeLink from) : link(std::move(from)) {}
    NodeLink link;
    std::string name;  // "node 1, with ranks 2 to 3,"
    std::thread reader;
  };

  void Read(Node* node);
  Status Handle(NodeFrame kind, std::string_view body);

  std::vector<std::unique_ptr<Node>> nodes_;
  std::function<void()> on_news_;
  std::function<void(const Status&)> on_failure_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<RemoteReport> reports_;
  int32_t reading_ = 0;
  bool ending_ = false;
};

}  // namespace fastllm::runtime
