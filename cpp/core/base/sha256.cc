#include "core/base/sha256.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/base/sha256_rounds.h"

namespace fastllm {
namespace {

constexpr size_t kBlock = 64;

uint32_t ReadBig32(const unsigned char* p) {
  return (uint32_t{p[0]} << 24) | (uint32_t{p[1]} << 16) | (uint32_t{p[2]} << 8) | p[3];
}

void CompressOne(uint32_t* state, const unsigned char* data) {
  uint32_t w[64];
  for (size_t i = 0; i < 16; ++i) w[i] = ReadBig32(data + 4 * i);
  for (int i = 16; i < 64; ++i) {
    const uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  uint32_t v[8];
  std::copy_n(state, 8, v);
  for (int i = 0; i < 64; ++i) {
    const uint32_t s1 = std::rotr(v[4], 6) ^ std::rotr(v[4], 11) ^ std::rotr(v[4], 25);
    const uint32_t t1 = v[7] + s1 + ((v[4] & v[5]) ^ (~v[4] & v[6])) + kSha256Round[i] + w[i];
    const uint32_t s0 = std::rotr(v[0], 2) ^ std::rotr(v[0], 13) ^ std::rotr(v[0], 22);
    const uint32_t t2 = s0 + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
    for (int k = 7; k > 0; --k) v[k] = v[k - 1];
    v[4] += t1;
    v[0] = t1 + t2;
  }
  for (int i = 0; i < 8; ++i) state[i] += v[i];
}

using Compress = void (*)(uint32_t*, const unsigned char*, size_t);

Compress Best() {
  static const Compress best = Sha256HasInstructions() ? Sha256CompressInstructions : Sha256CompressPlain;
  return best;
}

}  // namespace

void Sha256CompressPlain(uint32_t* state, const unsigned char* data, size_t blocks) {
  for (; blocks > 0; --blocks, data += kBlock) CompressOne(state, data);
}

// First 32 bits of the fractional parts of the square roots of the first 8 primes.
Sha256::Sha256()
    : state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19} {}

void Sha256::Update(std::span<const unsigned char> data) {
  const size_t held = size_ % kBlock;
  size_ += data.size();
  if (held > 0) {
    const size_t taken = std::min(kBlock - held, data.size());
    std::copy_n(data.begin(), taken, pending_.begin() + held);
    data = data.subspan(taken);
    if (held + taken < kBlock) return;
    Best()(state_.data(), pending_.data(), 1);
  }
  if (const size_t blocks = data.size() / kBlock; blocks > 0) {
    Best()(state_.data(), data.data(), blocks);
    data = data.subspan(blocks * kBlock);
  }
  std::ranges::copy(data, pending_.begin());
}

Sha256Digest Sha256::Finish() {
  const uint64_t bits = size_ * 8;
  unsigned char tail[2 * kBlock] = {};
  const size_t held = size_ % kBlock;
  std::copy_n(pending_.begin(), held, tail);
  tail[held] = 0x80;
  const size_t blocks = held + 1 + sizeof(bits) <= kBlock ? 1 : 2;
  for (size_t i = 0; i < sizeof(bits); ++i) tail[blocks * kBlock - 1 - i] = static_cast<unsigned char>(bits >> (8 * i));
  Best()(state_.data(), tail, blocks);
  Sha256Digest digest;
  for (size_t i = 0; i < digest.size(); ++i) {
    digest[i] = static_cast<unsigned char>(state_[i / 4] >> (24 - 8 * (i % 4)));
  }
  return digest;
}

Sha256Digest Sha256Hash(std::span<const unsigned char> data) {
  Sha256 sha;
  sha.Update(data);
  return sha.Finish();
}

}  // namespace fastllm
