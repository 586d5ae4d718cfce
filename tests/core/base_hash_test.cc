#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "core/base/hmac.h"
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

// RFC 4231, cases 1, 2, 3 and 6.
TEST(Hmac, EqualsTheReference) {
  EXPECT_EQ(Hex(HmacSha256(std::string(20, '\x0b'), "Hi There")),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(Hex(HmacSha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(Hex(HmacSha256(std::string(20, '\xaa'), std::string(50, '\xdd'))),
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  EXPECT_EQ(Hex(HmacSha256(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(Hmac, DigestsAreComparedWhole) {
  const Sha256Digest a = HmacSha256("key", "message");
  EXPECT_TRUE(SameDigest(a, HmacSha256("key", "message")));
  for (size_t i = 0; i < a.size(); ++i) {
    Sha256Digest b = a;
    b[i] ^= 1;
    EXPECT_FALSE(SameDigest(a, b)) << i;
  }
}

}  // namespace
}  // namespace fastllm
