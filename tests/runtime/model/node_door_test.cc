// Nodes that come to the driver: who has its token is let in, everybody else is turned away and holds nobody up.
#include "runtime/executor/node_door.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace fastllm::runtime {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

Clock::time_point Soon() { return Clock::now() + seconds(60); }

NodeLink ConnectTo(int32_t port) {
  auto link = NodeLink::Connect("127.0.0.1", port, Soon());
  EXPECT_TRUE(link.ok()) << link.status().ToString();
  return std::move(link).value();
}

Status Introduce(int32_t port, const std::string& token, int32_t node) {
  NodeLink link = ConnectTo(port);
  return IntroduceNode(&link, token, node, Soon());
}

std::string OwnAddress(const NodeLink& link) {
  sockaddr_in address{};
  socklen_t size = sizeof(address);
  getsockname(link.fd(), reinterpret_cast<sockaddr*>(&address), &size);
  return "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
}

// A door with its thread, and what it has turned away.
class OpenDoor {
 public:
  explicit OpenDoor(const std::string& token, int32_t count = 1, milliseconds greeting = seconds(60)) {
    NodeDoorOptions options;
    options.count = count;
    options.token = token;
    options.greeting = greeting;
    options.on_refused = [this](const std::string& why) {
      const std::lock_guard lock(mutex_);
      refused_.push_back(why);
      changed_.notify_all();
    };
    auto door = NodeDoor::Open("127.0.0.1", 0, options);
    EXPECT_TRUE(door.ok()) << door.status().ToString();
    port_ = door->port();
    thread_ = std::thread([this, door = std::move(door).value()]() mutable { links_ = door.AdmitAll(Soon()); });
  }
  ~OpenDoor() {
    if (thread_.joinable()) thread_.join();
  }

  int32_t port() const { return port_; }
  // When there are as many.
  std::vector<std::string> Refused(size_t count) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, seconds(60), [&] { return refused_.size() >= count; }));
    return refused_;
  }
  // Those that were let in.
  std::vector<std::unique_ptr<NodeLink>> Links() {
    thread_.join();
    EXPECT_TRUE(links_.ok()) << links_.status().ToString();
    return std::move(links_).value();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> refused_;
  int32_t port_ = 0;
  Result<std::vector<std::unique_ptr<NodeLink>>> links_ = Status::Internal("not yet");
  std::thread thread_;
};

void Say(const NodeLink& link, const std::string& bytes) {
  EXPECT_EQ(send(link.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
}

// Whether the other side has hung up, whatever it said before.
bool IsOver(const NodeLink& link) {
  char bytes[256];
  ssize_t got = 0;
  while ((got = recv(link.fd(), bytes, sizeof(bytes), 0)) > 0) {
  }
  return got == 0 || errno == ECONNRESET;
}

NodeNonce ChallengeOf(NodeLink* link) {
  NodeFrame kind{};
  std::string body;
  EXPECT_TRUE(link->Receive(&kind, &body, {4096, Soon()}).ok());
  EXPECT_EQ(kind, NodeFrame::kChallenge);
  NodeNonce challenge{};
  EXPECT_EQ(body.size(), 4 + challenge.size());
  std::copy_n(body.begin() + 4, challenge.size(), challenge.begin());
  return challenge;
}

TEST(NodeDoorTest, NodesWithTheTokenComeInByTheirNumbers) {
  for (const char* token : {"", "a secret"}) {
    OpenDoor door(token, 2);
    NodeLink second = ConnectTo(door.port()), first = ConnectTo(door.port());
    EXPECT_TRUE(IntroduceNode(&second, token, 2, Soon()).ok());
    EXPECT_TRUE(IntroduceNode(&first, token, 1, Soon()).ok());
    const auto links = door.Links();
    ASSERT_EQ(links.size(), 2u);
    ASSERT_TRUE(links[1]->Send(NodeFrame::kJob, "to node 2").ok());
    NodeFrame kind{};
    std::string body;
    ASSERT_TRUE(second.Receive(&kind, &body, {4096, Soon()}).ok());
    EXPECT_EQ(body, "to node 2");
  }
}

struct TokenCase {
  const char* name;
  const char* driver;
  const char* agent;
  const char* message;
};

class Tokens : public ::testing::TestWithParam<TokenCase> {};

TEST_P(Tokens, ThatDifferAreRefusedWithTheReasonAndTheAddress) {
  const TokenCase& p = GetParam();
  OpenDoor door(p.driver);
  NodeLink stranger = ConnectTo(door.port());
  const Status status = IntroduceNode(&stranger, p.agent, 1, Soon());
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), std::string("node 1 is refused: ") + p.message);
  EXPECT_EQ(door.Refused(1)[0], "connection from " + OwnAddress(stranger) + " refused: " + status.message());
  EXPECT_TRUE(Introduce(door.port(), p.driver, 1).ok());
  EXPECT_EQ(door.Links().size(), 1u);
}

const TokenCase kTokens[] = {
    {"Wrong", "right", "wrong", "its distributed_token is not that of node 0"},
    {"Prefix", "right", "righ", "its distributed_token is not that of node 0"},
    {"Missing", "right", "", "it has no distributed_token, and node 0 has one"},
    {"Unwanted", "", "wrong", "it has a distributed_token, and node 0 has none"},
};
INSTANTIATE_TEST_SUITE_P(Each, Tokens, ::testing::ValuesIn(kTokens),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(NodeDoorTest, StrangersAreTurnedAwayAndHoldNobodyUp) {
  OpenDoor door("right");
  const NodeLink silent = ConnectTo(door.port());
  const NodeLink slow = ConnectTo(door.port());
  Say(slow, std::string("\x48\0\0\0\x01", 5));
  const NodeLink browser = ConnectTo(door.port());
  Say(browser, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_TRUE(IsOver(browser));
  const NodeLink large = ConnectTo(door.port());
  Say(large, std::string("\xff\xff\xff\x3f\x01", 5));
  EXPECT_TRUE(IsOver(large));
  const NodeLink cut = ConnectTo(door.port());
  Say(cut, std::string("\x09\0\0\0\x01\x02\0\0\0short", 14));
  EXPECT_TRUE(IsOver(cut));
  { const NodeLink gone = ConnectTo(door.port()); }
  const auto refused = door.Refused(4);
  EXPECT_EQ(refused[0], "connection from " + OwnAddress(browser) + " refused: what it says is not what a node says");
  EXPECT_EQ(refused[1], "connection from " + OwnAddress(large) + " refused: what it says is not what a node says");
  EXPECT_EQ(refused[2], "connection from " + OwnAddress(cut) + " refused: no hello: 9 bytes");
  EXPECT_NE(refused[3].find("it went before it had said who it is"), std::string::npos) << refused[3];
  EXPECT_TRUE(Introduce(door.port(), "right", 1).ok());
  EXPECT_EQ(door.Links().size(), 1u);
  EXPECT_TRUE(IsOver(silent));
  EXPECT_TRUE(IsOver(slow));
}

TEST(NodeDoorTest, OnesThatSayNothingAreTurnedAwayInTime) {
  OpenDoor door("right", 1, milliseconds(50));
  const NodeLink silent = ConnectTo(door.port());
  EXPECT_TRUE(IsOver(silent));
  EXPECT_EQ(door.Refused(1)[0],
            "connection from " + OwnAddress(silent) + " refused: it did not say who it is within 50 ms");
  // A node is as fast as the machine: another try each time it was too slow.
  Status status = Introduce(door.port(), "right", 1);
  while (status.code() == StatusCode::kUnavailable) status = Introduce(door.port(), "right", 1);
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(door.Links().size(), 1u);
}

TEST(NodeDoorTest, ManySilentConnectionsLeaveRoomForANode) {
  OpenDoor door("right");
  std::vector<NodeLink> silent;
  for (int i = 0; i < 70; ++i) silent.push_back(ConnectTo(door.port()));
  EXPECT_TRUE(Introduce(door.port(), "right", 1).ok());
  EXPECT_EQ(door.Refused(7)[0], "connection from " + OwnAddress(silent[0]) +
                                    " refused: there are more connections that do not say who they are");
  EXPECT_EQ(door.Links().size(), 1u);
}

TEST(NodeDoorTest, AProofIsOfNoUseAnotherTime) {
  OpenDoor door("right", 2);
  NodeLink honest = ConnectTo(door.port()), thief = ConnectTo(door.port());
  NodeHello hello;
  hello.node = 1;
  const NodeNonce challenge = ChallengeOf(&honest);
  EXPECT_NE(challenge, ChallengeOf(&thief));
  hello.proof = ProofOfAgent("right", challenge, hello);
  NodeHello other = hello;
  other.node = 2;  // the number is part of the proof
  NodeLink changer = ConnectTo(door.port());
  other.proof = ProofOfAgent("right", ChallengeOf(&changer), hello);
  for (const auto& [link, said] : {std::pair(&thief, hello), std::pair(&changer, other)}) {
    ASSERT_TRUE(link->Send(NodeFrame::kHello, EncodeHello(said)).ok());
    NodeFrame kind{};
    std::string body;
    ASSERT_TRUE(link->Receive(&kind, &body, {4096, Soon()}).ok());
    EXPECT_EQ(kind, NodeFrame::kRefusal);
  }
  ASSERT_TRUE(honest.Send(NodeFrame::kHello, EncodeHello(hello)).ok());
  EXPECT_TRUE(Introduce(door.port(), "right", 2).ok());
  EXPECT_EQ(door.Links().size(), 2u);
}

TEST(NodeDoorTest, ItEndsWithTheNamesOfThoseThatHaveNotCome) {
  NodeDoorOptions options;
  options.count = 3;
  auto door = NodeDoor::Open("127.0.0.1", 0, options);
  ASSERT_TRUE(door.ok());
  const auto links = door->AdmitAll(Clock::now() + milliseconds(20));
  EXPECT_EQ(links.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(links.status().message(), "node 1, node 2, node 3");
}

// What an agent finds where it looks for the driver.
Status Meet(const std::function<void(NodeLink*)>& impostor, milliseconds patience = seconds(60)) {
  auto listening = ListenForNodes("127.0.0.1", 0);
  EXPECT_TRUE(listening.ok());
  sockaddr_in address{};
  socklen_t size = sizeof(address);
  getsockname(listening->get(), reinterpret_cast<sockaddr*>(&address), &size);
  NodeLink agent = ConnectTo(ntohs(address.sin_port));
  NodeLink other(UniqueFd(accept(listening->get(), nullptr, nullptr)));
  std::thread side([&] { impostor(&other); });
  const Status status = IntroduceNode(&agent, "right", 1, Clock::now() + patience);
  agent.Hangup();
  side.join();
  return status;
}

TEST(NodeGreetingTest, ADriverHasToProveItselfToo) {
  const auto welcome = [](bool reflects) {
    return [reflects](NodeLink* link) {
      ASSERT_TRUE(link->Send(NodeFrame::kChallenge, EncodeChallenge(NodeNonce{})).ok());
      NodeFrame kind{};
      std::string body;
      ASSERT_TRUE(link->Receive(&kind, &body, {4096, Soon()}).ok());
      const auto hello = DecodeHello(body);
      ASSERT_TRUE(hello.ok());
      const Sha256Digest proof = reflects ? hello->proof : ProofOfDriver("wrong", NodeNonce{}, *hello);
      ASSERT_TRUE(link->Send(NodeFrame::kWelcome, EncodeProof(proof)).ok());
    };
  };
  for (const bool reflects : {false, true}) {
    const Status status = Meet(welcome(reflects));
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    EXPECT_EQ(status.message(), "what listens there does not have the distributed_token of this node");
  }
}

TEST(NodeGreetingTest, OthersThanDriversAreFoundOut) {
  EXPECT_EQ(Meet([](NodeLink* link) { Say(*link, "SSH-2.0-x\r\n"); }).code(), StatusCode::kDataLoss);
  EXPECT_EQ(Meet([](NodeLink* link) { EXPECT_TRUE(link->Send(NodeFrame::kJob, "{}").ok()); }).message(),
            "what listens there is no engine");
  EXPECT_EQ(Meet([](NodeLink* link) { link->Hangup(); }).code(), StatusCode::kUnavailable);
  EXPECT_EQ(Meet([](NodeLink*) {}, milliseconds(20)).code(), StatusCode::kDeadlineExceeded);
  const Status other = Meet([](NodeLink* link) {
    EXPECT_TRUE(link->Send(NodeFrame::kChallenge, NumberHead(9) + std::string(32, 'x')).ok());
  });
  EXPECT_EQ(other.message(), "node 0 speaks protocol 9, this node 2: all nodes need the same build");
}

}  // namespace
}  // namespace fastllm::runtime
