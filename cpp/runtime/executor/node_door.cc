#include "runtime/executor/node_door.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "core/base/hmac.h"
#include "core/step/wire.h"

namespace fastllm::runtime {
namespace {

using Clock = std::chrono::steady_clock;

// Connections that have not said who they are. Past it the oldest has to go: a node needs one turn of the network.
constexpr size_t kMostGuests = 64;

std::string AddressOf(const sockaddr_storage& address, socklen_t size) {
  char host[NI_MAXHOST] = "?", port[NI_MAXSERV] = "?";
  getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host, sizeof(host), port, sizeof(port),
              NI_NUMERICHOST | NI_NUMERICSERV);
  return std::string(host) + ":" + port;
}

}  // namespace

Result<NodeDoor> NodeDoor::Open(const std::string& host, int32_t port, NodeDoorOptions options) {
  FASTLLM_ASSIGN_OR_RETURN(UniqueFd socket, ListenForNodes(host, port));
  return NodeDoor(std::move(socket), std::move(options));
}

int32_t NodeDoor::port() const {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  char port[NI_MAXSERV] = "0";
  if (getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0) {
    getnameinfo(reinterpret_cast<sockaddr*>(&address), size, nullptr, 0, port, sizeof(port), NI_NUMERICSERV);
  }
  return std::stoi(port);
}

std::string NodeDoor::Missing() const {
  std::string out;
  for (size_t i = 0; i < links_.size(); ++i) {
    if (links_[i] != nullptr) continue;
    out += (out.empty() ? "node " : ", node ") + std::to_string(options_.first + static_cast<int32_t>(i));
  }
  return out;
}

Result<std::vector<std::unique_ptr<NodeLink>>> NodeDoor::AdmitAll(Clock::time_point deadline) {
  links_.clear();
  links_.resize(static_cast<size_t>(options_.count));
  while (!Missing().empty()) {
    if (Clock::now() >= deadline) return Status(StatusCode::kDeadlineExceeded, Missing());
    Wait(deadline);
    FASTLLM_RETURN_IF_ERROR(Answer());
    std::vector<Guest> staying;
    for (Guest& guest : guests_) {
      if (Hear(&guest)) staying.push_back(std::move(guest));
    }
    guests_ = std::move(staying);
  }
  return std::move(links_);
}

// Until somebody comes or speaks, or a time is over.
void NodeDoor::Wait(Clock::time_point deadline) {
  std::vector<pollfd> watched{{socket_.get(), POLLIN, 0}};
  for (const Guest& guest : guests_) {
    watched.push_back({guest.link->fd(), POLLIN, 0});
    deadline = std::min(deadline, guest.until);
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  poll(watched.data(), watched.size(), static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30)));
}

Status NodeDoor::Answer() {
  for (;;) {
    sockaddr_storage address{};
    socklen_t size = sizeof(address);
    UniqueFd fd(accept4(socket_.get(), reinterpret_cast<sockaddr*>(&address), &size, SOCK_CLOEXEC));
    if (fd.get() < 0) return Status::Ok();
    Guest guest;
    guest.address = AddressOf(address, size);
    guest.link = std::make_unique<NodeLink>(std::move(fd));
    guest.until = Clock::now() + options_.greeting;
    FASTLLM_ASSIGN_OR_RETURN(guest.challenge, MakeNodeNonce());
    // It fits the socket, which is new; one that has gone already shows when it is heard.
    static_cast<void>(guest.link->Send(NodeFrame::kChallenge, EncodeChallenge(guest.challenge)));
    if (guests_.size() == kMostGuests) {
      Refuse(&guests_.front(), "there are more connections that do not say who they are");
      guests_.erase(guests_.begin());
    }
    guests_.push_back(std::move(guest));
  }
}

bool NodeDoor::Hear(Guest* guest) {
  size_t wanted = kNodeFrameHead;
  for (;;) {
    if (guest->heard.size() >= kNodeFrameHead) {
      const uint32_t size = LoadLittle<uint32_t>(guest->heard.data());
      if (size > kNodeHelloBytes || static_cast<NodeFrame>(guest->heard[4]) != NodeFrame::kHello) {
        Refuse(guest, "what it says is not what a node says");
        return false;
      }
      wanted = kNodeFrameHead + size;
      if (guest->heard.size() == wanted) return Judge(guest, std::string_view(guest->heard).substr(kNodeFrameHead));
    }
    char bytes[kNodeFrameHead + kNodeHelloBytes];
    const ssize_t got = recv(guest->link->fd(), bytes, wanted - guest->heard.size(), MSG_DONTWAIT);
    if (got > 0) {
      guest->heard.append(bytes, static_cast<size_t>(got));
      continue;
    }
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    Refuse(guest, "it went before it had said who it is");
    return false;
  }
  if (Clock::now() < guest->until) return true;
  Refuse(guest, "it did not say who it is within " + std::to_string(options_.greeting.count()) + " ms");
  return false;
}

// Never a guest any more.
bool NodeDoor::Judge(Guest* guest, std::string_view body) {
  const Result<NodeHello> hello = DecodeHello(body);
  if (!hello.ok()) {
    Refuse(guest, hello.status().message());
    return false;
  }
  const auto refuse = [&](const std::string& why) {
    const std::string text = "node " + std::to_string(hello->node) + " is refused: " + why;
    static_cast<void>(guest->link->Send(NodeFrame::kRefusal, text));
    Refuse(guest, text);
    return false;
  };
  if (hello->protocol != kNodeProtocol) {
    return refuse("it speaks protocol " + std::to_string(hello->protocol) + ", node 0 " +
                  std::to_string(kNodeProtocol));
  }
  if (!SameDigest(hello->proof, ProofOfAgent(options_.token, guest->challenge, *hello))) {
    const bool has_none = SameDigest(hello->proof, ProofOfAgent("", guest->challenge, *hello));
    return refuse(has_none                 ? "it has no distributed_token, and node 0 has one"
                  : options_.token.empty() ? "it has a distributed_token, and node 0 has none"
                                           : "its distributed_token is not that of node 0");
  }
  const int64_t at = int64_t{hello->node} - options_.first;
  if (at < 0 || at >= options_.count) {
    return refuse("node_rank must be from " + std::to_string(options_.first) + " to " +
                  std::to_string(options_.first + options_.count - 1));
  }
  const Sha256Digest proof = ProofOfDriver(options_.token, guest->challenge, *hello);
  // One that has gone meanwhile is found out like one that goes later.
  static_cast<void>(guest->link->Send(NodeFrame::kWelcome, EncodeProof(proof)));
  links_[static_cast<size_t>(at)] = std::move(guest->link);  // one that comes again has lost its connection
  return false;
}

void NodeDoor::Refuse(Guest* guest, const std::string& why) {
  if (options_.on_refused) options_.on_refused("connection from " + guest->address + " refused: " + why);
}

}  // namespace fastllm::runtime
