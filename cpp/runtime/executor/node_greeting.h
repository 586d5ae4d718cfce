// How nodes begin to talk: the driver challenges, each side proves that it has the engine's token, and neither says it.
//
//   driver: kChallenge  u32 protocol, nonce
//   agent:  kHello      u32 protocol, u32 number of its node, nonce, proof
//   driver: kWelcome    proof, or kRefusal with the reason
//
// A proof is the HMAC, keyed with the token, of who proves it, both nonces and the number of the node, so that none of
// them is of use another time, for another node or in the other direction. No token is the empty one. What follows is
// neither encrypted nor signed: the token keeps strangers out, not those who can read or change what others send.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/sha256.h"
#include "fastllm/status.h"
#include "runtime/executor/node_link.h"

namespace fastllm::runtime {

using NodeNonce = std::array<char, 32>;
// Random; kUnavailable when the system has none.
Result<NodeNonce> MakeNodeNonce();

struct NodeHello {
  uint32_t protocol = kNodeProtocol;
  uint32_t node = 0;
  NodeNonce nonce{};
  Sha256Digest proof{};
};
inline constexpr size_t kNodeHelloBytes = 72;

Sha256Digest ProofOfAgent(std::string_view token, const NodeNonce& challenge, const NodeHello& hello);
Sha256Digest ProofOfDriver(std::string_view token, const NodeNonce& challenge, const NodeHello& hello);

std::string EncodeChallenge(const NodeNonce& challenge);
std::string EncodeHello(const NodeHello& hello);
// Of another protocol the number alone is read. kDataLoss when it is no hello.
Result<NodeHello> DecodeHello(std::string_view body);
std::string EncodeProof(const Sha256Digest& proof);

// The agent's part. kInvalidArgument when the driver refuses it, with the driver's words; kDataLoss or
// kDeadlineExceeded when the other side is no driver, or has another token than this one.
Status IntroduceNode(NodeLink* link, std::string_view token, int32_t node,
                     std::chrono::steady_clock::time_point deadline);

}  // namespace fastllm::runtime
