#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "core/base/sha256.h"
#include "core/base/xxh3.h"

namespace fastllm {
namespace {

struct XxhVector {
  size_t size;
  uint64_t seed, hi, lo;
};
struct ShaVector {
  size_t size;
  const char* digest;
};
#include "fixtures/hash_vectors.inc"

using Bytes = std::vector<unsigned char>;

Bytes Message(size_t size) {
  Bytes bytes(size);
  for (uint64_t i = 0; i < size; ++i) bytes[i] = static_cast<unsigned char>((i * 2654435761u >> 13) ^ (i * 40503u));
  return bytes;
}

std::string Hex(const Sha256Digest& digest) {
  std::string text;
  for (unsigned char byte : digest) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

TEST(Xxh3, EqualsTheReferenceForEveryPathAndSeed) {
  const Bytes message = Message(65537);
  for (const XxhVector& v : kXxhVectors) {
    const Xxh3Digest digest = Xxh3Hash128({message.data(), v.size}, v.seed);
    EXPECT_EQ(digest, (Xxh3Digest{v.lo, v.hi})) << v.size << " bytes, seed " << v.seed;
  }
}

TEST(Xxh3, ReadsNothingBeyondTheMessage) {
  for (size_t size = 1; size < 600; ++size) {
    const Bytes exact = Message(size);  // a heap block of just this size: a read beyond it is seen under ASan
    Bytes longer = exact;
    longer.insert(longer.end(), {1, 2, 3, 4, 5, 6, 7, 8});
    EXPECT_EQ(Xxh3Hash128(exact, 5), Xxh3Hash128({longer.data(), size}, 5)) << size;
  }
}

TEST(Sha256, EqualsTheReferenceForEveryPadding) {
  const Bytes message = Message(65537);
  for (const ShaVector& v : kShaVectors) {
    EXPECT_EQ(Hex(Sha256Hash({message.data(), v.size})), v.digest) << v.size << " bytes";
  }
}

TEST(Sha256, PiecesGiveTheDigestOfTheWhole) {
  const Bytes message = Message(1000);
  const Sha256Digest whole = Sha256Hash(message);
  for (size_t piece = 1; piece <= 200; ++piece) {
    Sha256 sha;
    for (size_t at = 0; at < message.size(); at += piece) {
      sha.Update({message.data() + at, std::min(piece, message.size() - at)});
    }
    EXPECT_EQ(sha.Finish(), whole) << "pieces of " << piece;
  }
}

TEST(Sha256, BothFormsOfTheCompressionAgree) {
  std::array<uint32_t, 8> plain = {1, 2, 3, 4, 5, 6, 7, 0xffffffff};
  const std::array<uint32_t, 8> start = plain;
  const Bytes message = Message(64 * 5);
  Sha256CompressPlain(plain.data(), message.data(), 5);
  EXPECT_NE(plain, start);
  if (Sha256HasInstructions()) {
    std::array<uint32_t, 8> fast = start;
    Sha256CompressInstructions(fast.data(), message.data(), 5);
    EXPECT_EQ(plain, fast);
  } else {
    std::array<uint32_t, 8> pieces = start;
    for (size_t i = 0; i < 5; ++i) Sha256CompressPlain(pieces.data(), message.data() + 64 * i, 1);
    EXPECT_EQ(plain, pieces);
  }
}

}  // namespace
}  // namespace fastllm
