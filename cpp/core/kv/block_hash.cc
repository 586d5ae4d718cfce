#include "core/kv/block_hash.h"

#include <cstring>
#include <vector>

#include "core/base/sha256.h"
#include "core/base/xxh3.h"

namespace fastllm {
namespace {

constexpr size_t kParentBytes = 16;
constexpr size_t kStackBytes = 1024;

void WriteMessage(const BlockHash& parent, std::span<const TokenId> tokens, std::string_view extra_keys,
                  unsigned char* out) {
  std::memcpy(out, &parent.lo, sizeof(parent.lo));
  std::memcpy(out + sizeof(parent.lo), &parent.hi, sizeof(parent.hi));
  out += kParentBytes;
  if (!tokens.empty()) std::memcpy(out, tokens.data(), tokens.size_bytes());
  if (!extra_keys.empty()) std::memcpy(out + tokens.size_bytes(), extra_keys.data(), extra_keys.size());
}

BlockHash HashXx(const BlockHash& parent, std::span<const TokenId> tokens, std::string_view extra_keys, uint64_t seed) {
  const size_t size = kParentBytes + tokens.size_bytes() + extra_keys.size();
  Xxh3Digest digest;
  if (size <= kStackBytes) {
    unsigned char message[kStackBytes];
    WriteMessage(parent, tokens, extra_keys, message);
    digest = Xxh3Hash128({message, size}, seed);
  } else {
    std::vector<unsigned char> message(size);
    WriteMessage(parent, tokens, extra_keys, message.data());
    digest = Xxh3Hash128(message, seed);
  }
  return {digest.lo, digest.hi, {}};
}

void WriteBig(uint64_t word, unsigned char* out) {
  for (int i = 0; i < 8; ++i) out[i] = static_cast<unsigned char>(word >> (56 - 8 * i));
}

uint64_t ReadBig(const unsigned char* in) {
  uint64_t word = 0;
  for (int i = 0; i < 8; ++i) word = (word << 8) | in[i];
  return word;
}

std::span<const unsigned char> Bytes(const void* data, size_t size) {
  return {static_cast<const unsigned char*>(data), size};
}

BlockHash HashSha(const BlockHash& parent, std::span<const TokenId> tokens, std::string_view extra_keys) {
  unsigned char digest[32];
  WriteBig(parent.high[1], digest);
  WriteBig(parent.high[0], digest + 8);
  WriteBig(parent.hi, digest + 16);
  WriteBig(parent.lo, digest + 24);
  Sha256 sha;
  sha.Update(digest);
  sha.Update(Bytes(tokens.data(), tokens.size_bytes()));
  sha.Update(Bytes(extra_keys.data(), extra_keys.size()));
  const Sha256Digest d = sha.Finish();
  return {ReadBig(&d[24]), ReadBig(&d[16]), {ReadBig(&d[8]), ReadBig(&d[0])}};
}

}  // namespace

BlockHash HashBlock(const BlockHash& parent, std::span<const TokenId> tokens, std::string_view extra_keys,
                    const BlockHashSpec& spec) {
  return spec.algo == PrefixHashAlgo::kSha256 ? HashSha(parent, tokens, extra_keys)
                                              : HashXx(parent, tokens, extra_keys, spec.seed);
}

}  // namespace fastllm
