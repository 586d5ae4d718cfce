#include "runtime/executor/node_link.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "core/step/wire.h"

namespace fastllm::runtime {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kBetweenAttempts{200};

std::string Where(const std::string& host, int32_t port) { return host + ":" + std::to_string(port); }

Status Gone(const std::string& what, int error) {
  return Status::Unavailable(what + ": " + (error == 0 ? "the other side has gone" : std::strerror(error)));
}

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Result<Addresses> Resolve(const std::string& host, int32_t port, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) return Status::Unavailable("master_addr \"" + host + "\": " + gai_strerror(error));
  return Addresses(found, &freeaddrinfo);
}

void SetNumber(int socket, int level, int option, int value) {
  setsockopt(socket, level, option, &value, sizeof(value));
}

// Until something can be read.
Status AwaitBytes(int socket, Clock::time_point deadline) {
  if (deadline == Clock::time_point::max()) return Status::Ok();
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return Status(StatusCode::kDeadlineExceeded, "a node said nothing in time");
    pollfd watched{socket, POLLIN, 0};
    if (poll(&watched, 1, static_cast<int>(std::min<int64_t>(left, 1 << 30))) > 0) return Status::Ok();
  }
}

Status ReadAll(int socket, char* to, size_t bytes, Clock::time_point deadline) {
  while (bytes > 0) {
    FASTLLM_RETURN_IF_ERROR(AwaitBytes(socket, deadline));
    const ssize_t got = recv(socket, to, bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return Gone("a node", got == 0 ? 0 : errno);
    to += got;
    bytes -= static_cast<size_t>(got);
  }
  return Status::Ok();
}

}  // namespace

NodeLink::NodeLink(UniqueFd socket) : socket_(std::move(socket)) {
  const int fd = socket_.get();
  SetNumber(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  SetNumber(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetNumber(fd, IPPROTO_TCP, TCP_KEEPIDLE, 5);
  SetNumber(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  SetNumber(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  SetNumber(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 20000);  // ms, of what is sent and not answered for
}

Result<NodeLink> NodeLink::Connect(const std::string& host, int32_t port, Clock::time_point deadline) {
  for (;;) {
    FASTLLM_ASSIGN_OR_RETURN(const Addresses addresses, Resolve(host, port, 0));
    int error = 0;
    for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
      UniqueFd fd(socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
      if (fd.get() >= 0 && connect(fd.get(), a->ai_addr, a->ai_addrlen) == 0) return NodeLink(std::move(fd));
      error = errno;
    }
    if (Clock::now() + kBetweenAttempts > deadline) return Gone("node 0 at " + Where(host, port), error);
    std::this_thread::sleep_for(kBetweenAttempts);  // nothing tells when a port begins to listen
  }
}

Status NodeLink::Send(NodeFrame kind, std::string_view head, std::string_view body) {
  std::string frame(kNodeFrameHead, '\0');
  StoreLittle(frame.data(), static_cast<uint32_t>(head.size() + body.size()));
  frame[4] = static_cast<char>(kind);
  frame.append(head).append(body);
  const std::lock_guard lock(sending_);
  for (std::string_view left = frame; !left.empty();) {
    const ssize_t sent = send(socket_.get(), left.data(), left.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return Gone("a node", errno);
    left.remove_prefix(static_cast<size_t>(sent));
  }
  return Status::Ok();
}

Status NodeLink::Receive(NodeFrame* kind, std::string* body, const Limits& limits) {
  char head[kNodeFrameHead];
  FASTLLM_RETURN_IF_ERROR(ReadAll(socket_.get(), head, sizeof(head), limits.deadline));
  const uint32_t size = LoadLittle<uint32_t>(head);
  if (size > limits.most_bytes) return Status::DataLoss("a node sent a frame of " + std::to_string(size) + " bytes");
  *kind = static_cast<NodeFrame>(head[4]);
  body->resize(size);
  return ReadAll(socket_.get(), body->data(), size, limits.deadline);
}

void NodeLink::Hangup() { shutdown(socket_.get(), SHUT_RDWR); }

std::string NodeLink::local_address() const {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  char text[NI_MAXHOST] = "";
  if (getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0) {
    getnameinfo(reinterpret_cast<sockaddr*>(&address), size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
  }
  return text;
}

Result<UniqueFd> ListenForNodes(const std::string& host, int32_t port) {
  FASTLLM_ASSIGN_OR_RETURN(const Addresses addresses, Resolve(host, port, AI_PASSIVE));
  int error = 0;
  for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
    UniqueFd fd(socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    SetNumber(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
    if (bind(fd.get(), a->ai_addr, a->ai_addrlen) == 0 && listen(fd.get(), 128) == 0) return fd;
    error = errno;
  }
  return Status::Unavailable("cannot listen for nodes on " + Where(host, port) + ": " + std::strerror(error));
}

std::string NumberHead(uint32_t number) {
  std::string head(sizeof(number), '\0');
  StoreLittle(head.data(), number);
  return head;
}

bool TakeNumber(std::string_view* body, uint32_t* number) {
  if (body->size() < sizeof(*number)) return false;
  *number = LoadLittle<uint32_t>(body->data());
  body->remove_prefix(sizeof(*number));
  return true;
}

}  // namespace fastllm::runtime
