// NodeDoor: lets the agents of the other nodes in, each when it has proved that it has the engine's token.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/unique_fd.h"
#include "fastllm/status.h"
#include "runtime/executor/node_greeting.h"
#include "runtime/executor/node_link.h"

namespace fastllm::runtime {

struct NodeDoorOptions {
  int32_t first = 1;  // number of the first node that is waited for
  int32_t count = 1;
  std::string token;
  std::chrono::milliseconds greeting{10000};  // for a connection to say who it is
  // Told of each connection that is turned away: its address and the reason.
  std::function<void(const std::string& why)> on_refused;
};

// One thread. Connections are heard side by side: one that says nothing keeps nobody waiting.
class NodeDoor {
 public:
  static Result<NodeDoor> Open(const std::string& host, int32_t port, NodeDoorOptions options);

  // Until all nodes are there, in their order. kDeadlineExceeded names those that are not.
  Result<std::vector<std::unique_ptr<NodeLink>>> AdmitAll(std::chrono::steady_clock::time_point deadline);
  // The port that was taken, where 0 was asked for.
  int32_t port() const;

 private:
  // A connection that has not said yet who it is.
  struct Guest {
    std::unique_ptr<NodeLink> link;
    std::string address;
    NodeNonce challenge{};
    std::string heard;  // of its hello
    std::chrono::steady_clock::time_point until;
  };

  NodeDoor(UniqueFd socket, NodeDoorOptions options) : socket_(std::move(socket)), options_(std::move(options)) {}
  void Wait(std::chrono::steady_clock::time_point deadline);
  Status Answer();
  // Whether the guest stays one; if not it has been let in or turned away.
  bool Hear(Guest* guest);
  bool Judge(Guest* guest, std::string_view body);
  void Refuse(Guest* guest, const std::string& why);
  std::string Missing() const;

  UniqueFd socket_;
  NodeDoorOptions options_;
  std::vector<Guest> guests_;  // oldest first
  std::vector<std::unique_ptr<NodeLink>> links_;
};

}  // namespace fastllm::runtime
