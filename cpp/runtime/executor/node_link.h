// NodeLink: framed messages between the driver and the agent of another node, over TCP.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include "core/base/unique_fd.h"
#include "fastllm/status.h"

namespace fastllm::runtime {

enum class NodeFrame : uint8_t {
  kHello = 1,      // from an agent, when it has been challenged: node_greeting.h
  kJob = 2,        // to it: RankJob as JSON, of its first rank
  kOrder = 3,      // to it, for all its ranks
  kReport = 4,     // from it: u32 rank, report
  kFailure = 5,    // from it: u32 status code, text
  kEnd = 6,        // to it: the engine ends
  kRefusal = 7,    // to it, in place of a welcome: why
  kChallenge = 8,  // to it, at first
  kWelcome = 9,    // to it, when it is let in
};
inline constexpr uint32_t kNodeProtocol = 2;
inline constexpr size_t kNodeFrameHead = 5;  // bytes: u32 of the body, kind

// One connection. Any thread may send, one receives. A peer that vanishes with its machine is found within 20 seconds.
class NodeLink {
 public:
  explicit NodeLink(UniqueFd socket);
  // Tries until the deadline while nobody listens; kUnavailable names the address.
  static Result<NodeLink> Connect(const std::string& host, int32_t port,
                                  std::chrono::steady_clock::time_point deadline);

  NodeLink(NodeLink&& other) noexcept : socket_(std::move(other.socket_)) {}

  Status Send(NodeFrame kind, std::string_view head, std::string_view body);
  Status Send(NodeFrame kind, std::string_view body) { return Send(kind, {}, body); }
  // What a peer that is not known yet may send, and until when.
  struct Limits {
    size_t most_bytes = size_t{1} << 30;
    std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
  };
  // kUnavailable when the other side has gone, kDataLoss for a frame past the limit, kDeadlineExceeded.
  Status Receive(NodeFrame* kind, std::string* body, const Limits& limits);
  Status Receive(NodeFrame* kind, std::string* body) { return Receive(kind, body, Limits()); }
  // Ends all sends and receives, here and there. Any thread.
  void Hangup();
  // The address of this side.
  std::string local_address() const;
  // For poll().
  int fd() const { return socket_.get(); }

 private:
  std::mutex sending_;
  UniqueFd socket_;
};

// A socket that listens, and does not block. kUnavailable when the address cannot be had.
Result<UniqueFd> ListenForNodes(const std::string& host, int32_t port);

// A number as the head of a frame, and back.
std::string NumberHead(uint32_t number);
// False when the body is too short.
bool TakeNumber(std::string_view* body, uint32_t* number);

}  // namespace fastllm::runtime
