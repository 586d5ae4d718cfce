#include <gtest/gtest.h>

#include <random>
#include <string>

#include "core/text/utf8_decoder.h"

namespace fastllm {
namespace {

const std::string kBad = "\xEF\xBF\xBD";

std::string DecodeInPortions(const std::string& bytes, std::mt19937* rng) {
  Utf8Decoder decoder;
  std::string out;
  for (size_t at = 0; at < bytes.size();) {
    const size_t n = std::min<size_t>(bytes.size() - at, rng == nullptr ? bytes.size() : (*rng)() % 4);
    decoder.Append(std::string_view(bytes).substr(at, n), &out);
    at += n;
  }
  decoder.Flush(&out);
  return out;
}

std::string Decode(const std::string& bytes) { return DecodeInPortions(bytes, nullptr); }

// Expected values are those of Python 3: bytes.decode('utf-8', errors='replace').
TEST(Utf8Decoder, ReplacesAsPythonDoes) {
  EXPECT_EQ(Decode("plain"), "plain");
  EXPECT_EQ(Decode("\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80"), "\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80");
  EXPECT_EQ(Decode("\x80"), kBad);
  EXPECT_EQ(Decode("\xFF\xFE"), kBad + kBad);
  EXPECT_EQ(Decode("\xC0\xAF"), kBad + kBad);                        // overlong
  EXPECT_EQ(Decode("\xE0\x80\x80"), kBad + kBad + kBad);             // overlong: E0 stands alone
  EXPECT_EQ(Decode("\xED\xA0\x80"), kBad + kBad + kBad);             // surrogate
  EXPECT_EQ(Decode("\xF4\x90\x80\x80"), kBad + kBad + kBad + kBad);  // above U+10FFFF
  EXPECT_EQ(Decode("\xF5\x80"), kBad + kBad);
  EXPECT_EQ(Decode("\xE2\x82"), kBad);  // cut: one for the whole part
  EXPECT_EQ(Decode("\xF0\x9F\x98"), kBad);
  EXPECT_EQ(Decode("\xF0\x9F\x98"
                   "A"),
            kBad + "A");
  EXPECT_EQ(Decode("\xE2\x82\xE2\x82\xAC"), kBad + "\xE2\x82\xAC");
  EXPECT_EQ(Decode("\xC3\xC3\xA9"), kBad + "\xC3\xA9");
  EXPECT_EQ(Decode(std::string("a\0b", 3)), std::string("a\0b", 3));
}

TEST(Utf8Decoder, HoldsACharacterUntilItIsWhole) {
  Utf8Decoder decoder;
  std::string out;
  decoder.Append("\xF0\x9F\x98", &out);
  EXPECT_EQ(out, "");
  decoder.Append("\x80", &out);
  EXPECT_EQ(out, "\xF0\x9F\x98\x80");
  decoder.Append("\xE0", &out);
  decoder.Append("\x80", &out);  // proves E0 invalid: both show at once
  EXPECT_EQ(out, "\xF0\x9F\x98\x80" + kBad + kBad);
}

TEST(Utf8Decoder, PortionsDoNotChangeTheText) {
  std::mt19937 rng(7);
  const unsigned char alphabet[] = {'a',  0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC1, 0xC2,
                                    0xE0, 0xE2, 0xED, 0xEF, 0xF0, 0xF1, 0xF4, 0xF5, 0xFF};
  for (int round = 0; round < 2000; ++round) {
    std::string bytes;
    for (size_t i = 0, n = rng() % 24; i < n; ++i) bytes += static_cast<char>(alphabet[rng() % sizeof(alphabet)]);
    const std::string whole = Decode(bytes);
    EXPECT_EQ(DecodeInPortions(bytes, &rng), whole);
    EXPECT_TRUE(IsValidUtf8(whole));
    // Text that was valid comes out as it went in, and nothing else does.
    EXPECT_EQ(IsValidUtf8(bytes), whole == bytes);
  }
}

TEST(Utf8Decoder, EndlessInvalidBytesStayLinear) {
  const size_t n = 1 << 20;
  std::string out;
  Utf8Decoder decoder;
  for (size_t i = 0; i < n; ++i) decoder.Append("\x80", &out);
  EXPECT_EQ(out.size(), 3 * n);
  EXPECT_EQ(CountUtf8Chars(out), n);
}

TEST(Utf8, Validity) {
  EXPECT_TRUE(IsValidUtf8(""));
  EXPECT_TRUE(IsValidUtf8("\xED\x9F\xBF\xEE\x80\x80\xF4\x8F\xBF\xBF"));
  EXPECT_FALSE(IsValidUtf8("\xED\xA0\x80"));
  EXPECT_FALSE(IsValidUtf8("\xC3"));
  EXPECT_FALSE(IsValidUtf8("a\x80"));
  EXPECT_EQ(CountUtf8Chars("a\xC3\xA9\xF0\x9F\x98\x80"), 3u);
}

}  // namespace
}  // namespace fastllm
