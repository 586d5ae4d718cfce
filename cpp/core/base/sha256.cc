#include "core/base/sha256.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace fastllm {
namespace {

constexpr size_t kBlock = 64;

// First 32 bits of the fractional parts of the cube roots of the first 64 primes.
constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

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
    const uint32_t t1 = v[7] + s1 + ((v[4] & v[5]) ^ (~v[4] & v[6])) + kRound[i] + w[i];
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
