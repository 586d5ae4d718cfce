#include "runtime/executor/node_greeting.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>

#include "core/base/hmac.h"
#include "core/step/wire.h"

namespace fastllm::runtime {
namespace {

constexpr size_t kChallengeBytes = sizeof(uint32_t) + sizeof(NodeNonce);
constexpr size_t kMostGreetingBytes = 4096;  // a refusal is a text

Sha256Digest Proof(std::string_view who, std::string_view token, const NodeNonce& challenge, const NodeHello& hello) {
  std::string message(who);
  message.append(challenge.begin(), challenge.end()).append(hello.nonce.begin(), hello.nonce.end());
  return HmacSha256(token, message + NumberHead(hello.protocol) + NumberHead(hello.node));
}

template <typename Bytes>
void Take(std::string_view* from, Bytes* to) {
  std::copy_n(from->begin(), to->size(), to->begin());
  from->remove_prefix(to->size());
}

}  // namespace

Result<NodeNonce> MakeNodeNonce() {
  NodeNonce nonce;
  ssize_t got = 0;
  while ((got = getrandom(nonce.data(), nonce.size(), 0)) < 0 && errno == EINTR) {
  }
  if (got != static_cast<ssize_t>(nonce.size())) return Status::Unavailable("the system gives no random bytes");
  return nonce;
}

Sha256Digest ProofOfAgent(std::string_view token, const NodeNonce& challenge, const NodeHello& hello) {
  return Proof("fastllm node", token, challenge, hello);
}

Sha256Digest ProofOfDriver(std::string_view token, const NodeNonce& challenge, const NodeHello& hello) {
  return Proof("fastllm driver", token, challenge, hello);
}

std::string EncodeChallenge(const NodeNonce& challenge) {
  return NumberHead(kNodeProtocol).append(challenge.begin(), challenge.end());
}

std::string EncodeHello(const NodeHello& hello) {
  std::string out = NumberHead(hello.protocol) + NumberHead(hello.node);
  out.append(hello.nonce.begin(), hello.nonce.end());
  return out + EncodeProof(hello.proof);
}

Result<NodeHello> DecodeHello(std::string_view body) {
  NodeHello hello;
  const std::string bytes = std::to_string(body.size());
  if (!TakeNumber(&body, &hello.protocol)) return Status::DataLoss("no hello: " + bytes + " bytes");
  if (hello.protocol != kNodeProtocol) return hello;
  if (!TakeNumber(&body, &hello.node) || body.size() != sizeof(hello.nonce) + sizeof(hello.proof)) {
    return Status::DataLoss("no hello: " + bytes + " bytes");
  }
  Take(&body, &hello.nonce);
  Take(&body, &hello.proof);
  return hello;
}

std::string EncodeProof(const Sha256Digest& proof) { return {proof.begin(), proof.end()}; }

Status IntroduceNode(NodeLink* link, std::string_view token, int32_t node,
                     std::chrono::steady_clock::time_point deadline) {
  const NodeLink::Limits limits{kMostGreetingBytes, deadline};
  NodeFrame kind{};
  std::string body;
  FASTLLM_RETURN_IF_ERROR(link->Receive(&kind, &body, limits));
  std::string_view left = body;
  uint32_t protocol = 0;
  if (kind != NodeFrame::kChallenge || body.size() < sizeof(protocol) || !TakeNumber(&left, &protocol)) {
    return Status::DataLoss("what listens there is no engine");
  }
  if (protocol != kNodeProtocol || body.size() != kChallengeBytes) {
    return Status::InvalidArgument("node 0 speaks protocol " + std::to_string(protocol) + ", this node " +
                                   std::to_string(kNodeProtocol) + ": all nodes need the same build");
  }
  NodeNonce challenge;
  Take(&left, &challenge);
  NodeHello hello;
  hello.node = static_cast<uint32_t>(node);
  FASTLLM_ASSIGN_OR_RETURN(hello.nonce, MakeNodeNonce());
  hello.proof = ProofOfAgent(token, challenge, hello);
  FASTLLM_RETURN_IF_ERROR(link->Send(NodeFrame::kHello, EncodeHello(hello)));
  FASTLLM_RETURN_IF_ERROR(link->Receive(&kind, &body, limits));
  if (kind == NodeFrame::kRefusal) return Status::InvalidArgument(body);
  Sha256Digest proof{};
  if (kind != NodeFrame::kWelcome || body.size() != proof.size()) {
    return Status::DataLoss("what listens there is no engine");
  }
  left = body;
  Take(&left, &proof);
  if (SameDigest(proof, ProofOfDriver(token, challenge, hello))) return Status::Ok();
  return Status::DataLoss("what listens there does not have the distributed_token of this node");
}

}  // namespace fastllm::runtime
