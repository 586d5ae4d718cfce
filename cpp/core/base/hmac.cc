#include "core/base/hmac.h"

#include <algorithm>
#include <array>
#include <cstddef>

namespace fastllm {
namespace {

constexpr size_t kBlock = 64;

std::span<const unsigned char> BytesOf(std::string_view text) {
  return {reinterpret_cast<const unsigned char*>(text.data()), text.size()};
}

Sha256Digest HashOfPadded(const std::array<unsigned char, kBlock>& key, unsigned char pad,
                          std::span<const unsigned char> message) {
  std::array<unsigned char, kBlock> padded;
  std::ranges::transform(key, padded.begin(), [pad](unsigned char c) { return static_cast<unsigned char>(c ^ pad); });
  Sha256 sha;
  sha.Update(padded);
  sha.Update(message);
  return sha.Finish();
}

}  // namespace

Sha256Digest HmacSha256(std::string_view key, std::string_view message) {
  std::array<unsigned char, kBlock> block{};
  if (key.size() > kBlock) {
    std::ranges::copy(Sha256Hash(BytesOf(key)), block.begin());
  } else {
    std::ranges::copy(BytesOf(key), block.begin());
  }
  return HashOfPadded(block, 0x5c, HashOfPadded(block, 0x36, BytesOf(message)));
}

bool SameDigest(const Sha256Digest& a, const Sha256Digest& b) {
  unsigned char difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference = static_cast<unsigned char>(difference | (a[i] ^ b[i]));
  return difference == 0;
}

}  // namespace fastllm
