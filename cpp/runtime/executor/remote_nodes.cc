#include "runtime/executor/remote_nodes.h"

#include <pthread.h>

#include <utility>

namespace fastllm::runtime {
namespace {

using Clock = std::chrono::steady_clock;

// How long nodes that are told to end may take: they give their ranks 3 seconds.
constexpr std::chrono::seconds kFarewell{6};

}  // namespace

Result<std::unique_ptr<RemoteNodes>> RemoteNodes::Accept(const std::string& host, int32_t port, NodeDoorOptions door,
                                                         std::chrono::milliseconds patience) {
  FASTLLM_ASSIGN_OR_RETURN(NodeDoor open, NodeDoor::Open(host, port, std::move(door)));
  auto links = open.AdmitAll(Clock::now() + patience);
  if (!links.ok()) {
    if (links.status().code() != StatusCode::kDeadlineExceeded) return links.status();
    return Status(StatusCode::kDeadlineExceeded, links.status().message() + " did not come to " + host + ":" +
                                                     std::to_string(port) + " within " +
                                                     std::to_string(patience.count()) + " ms");
  }
  auto nodes = std::make_unique<RemoteNodes>();
  for (auto& link : *links) nodes->nodes_.push_back(std::make_unique<Node>(std::move(*link)));
  return nodes;
}

Status RemoteNodes::Begin(const std::vector<RankJob>& jobs, std::function<void()> on_news,
                          std::function<void(const Status&)> on_failure) {
  on_news_ = std::move(on_news);
  on_failure_ = std::move(on_failure);
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const NodeRanks& ranks = jobs[i].memory.hub.node;
    nodes_[i]->name =
        "the node with ranks " + std::to_string(ranks.first) + " to " + std::to_string(ranks.first + ranks.count - 1);
    FASTLLM_RETURN_IF_ERROR(nodes_[i]->link.Send(NodeFrame::kJob, ToJson(jobs[i])));
  }
  for (const auto& node : nodes_) {
    {
      const std::lock_guard lock(mutex_);
      ++reading_;
    }
    node->reader = std::thread([this, node = node.get()] { Read(node); });
  }
  return Status::Ok();
}

void RemoteNodes::Read(Node* node) {
  pthread_setname_np(pthread_self(), "fastllm-node");
  NodeFrame kind{};
  std::string body;
  Status status;
  while (status.ok()) {
    status = node->link.Receive(&kind, &body);
    if (!status.ok()) {
      status = Status::Unavailable(node->name + " has gone: " + status.message());
    } else {
      status = Handle(kind, body);
    }
  }
  bool expected = false;
  {
    const std::lock_guard lock(mutex_);
    expected = ending_;
  }
  if (!expected) on_failure_(status);
  const std::lock_guard lock(mutex_);
  --reading_;
  changed_.notify_all();
}

Status RemoteNodes::Handle(NodeFrame kind, std::string_view body) {
  uint32_t number = 0;
  if (!TakeNumber(&body, &number)) return Status::DataLoss("a node sent a frame that is too short");
  if (kind == NodeFrame::kFailure) return {static_cast<StatusCode>(number), std::string(body)};
  if (kind != NodeFrame::kReport) return Status::DataLoss("a node sent a frame of another kind");
  {
    const std::lock_guard lock(mutex_);
    reports_.push_back({static_cast<int32_t>(number), std::string(body)});
  }
  on_news_();
  return Status::Ok();
}

Status RemoteNodes::Post(std::string_view order) {
  for (const auto& node : nodes_) FASTLLM_RETURN_IF_ERROR(node->link.Send(NodeFrame::kOrder, order));
  return Status::Ok();
}

bool RemoteNodes::HasReport() const {
  const std::lock_guard lock(mutex_);
  return !reports_.empty();
}

RemoteReport RemoteNodes::TakeReport() {
  const std::lock_guard lock(mutex_);
  RemoteReport report = std::move(reports_.front());
  reports_.pop_front();
  return report;
}

void RemoteNodes::Hangup() {
  for (const auto& node : nodes_) node->link.Hangup();
}

void RemoteNodes::End(bool orderly) {
  {
    std::unique_lock lock(mutex_);
    ending_ = true;
    lock.unlock();
    if (orderly) {
      for (const auto& node : nodes_) static_cast<void>(node->link.Send(NodeFrame::kEnd, {}));
    }
    lock.lock();
    if (orderly) changed_.wait_for(lock, kFarewell, [this] { return reading_ == 0; });
  }
  Hangup();
  for (const auto& node : nodes_) {
    if (node->reader.joinable()) node->reader.join();
  }
}

}  // namespace fastllm::runtime
