#include <gtest/gtest.h>

#include "runtime/weights/gguf_tokens.h"

namespace fastllm::runtime {
namespace {

using Strings = std::vector<std::string>;
using Integers = std::vector<int64_t>;

GgufMetadata Metadata(const std::string& model, Strings tokens) {
  return {{"tokenizer.ggml.model", model}, {"tokenizer.ggml.tokens", std::move(tokens)}};
}

TEST(GgufTokensTest, ByteLevelTokensBecomeBytes) {
  // U+0120 stands for a space, U+010A for a newline, U+00C3 U+00A9 for the two bytes of U+00E9.
  GgufMetadata metadata = Metadata("gpt2", {"hi", "\u0120the", "\u010A", "\u00C3\u00A9", "\u00C3"});
  metadata["tokenizer.ggml.token_type"] = Integers{1, 1, 1, 1, 1};
  metadata["tokenizer.ggml.add_space_prefix"] = true;  // of no effect for byte-level models
  auto table = TokenTableFromGguf(metadata);
  ASSERT_TRUE(table.ok()) << table.status().ToString();
  EXPECT_EQ(table->bytes, (Strings{"hi", " the", "\n", "\u00E9", "\xC3"}));
  EXPECT_EQ(table->special, (std::vector<uint8_t>{0, 0, 0, 0, 0}));
  EXPECT_TRUE(table->first_bytes.empty());
  EXPECT_EQ(table->invalid_bytes, InvalidBytes::kReplacePart);
}

TEST(GgufTokensTest, ByteLevelStandInsCoverAllBytes) {
  Strings tokens;
  Strings want;
  // The definition: printable characters of Latin-1 stay, the rest count up from U+0100.
  int moved = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool stays = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    const int code = stays ? byte : moved++;
    tokens.push_back(code < 0x80
                         ? std::string(1, static_cast<char>(code))
                         : std::string{static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))});
    want.push_back(std::string(1, static_cast<char>(byte)));
  }
  auto table = TokenTableFromGguf(Metadata("gpt2", tokens));
  ASSERT_TRUE(table.ok());
  EXPECT_EQ(table->bytes, want);
}

TEST(GgufTokensTest, ByteLevelTokensThatAreLiteral) {
  // Control, user-defined and unknown tokens are literal even where their characters are stand-ins; so is a token with
  // a character that is none (a raw space, U+4E2D, invalid or overlong UTF-8); an unused token has no bytes.
  GgufMetadata metadata =
      Metadata("gpt2", {"<|\u0120|>", "\u0120u", "\u0120k", "a b", "\u4E2D", "\xC3", "\xC1\x81", "[PAD7]"});
  metadata["tokenizer.ggml.token_type"] = Integers{3, 4, 2, 1, 1, 1, 1, 5};
  auto table = TokenTableFromGguf(metadata);
  ASSERT_TRUE(table.ok()) << table.status().ToString();
  EXPECT_EQ(table->bytes, (Strings{"<|\u0120|>", "\u0120u", "\u0120k", "a b", "\u4E2D", "\xC3", "\xC1\x81", ""}));
  EXPECT_EQ(table->special, (std::vector<uint8_t>{1, 0, 1, 0, 0, 0, 0, 0}));
}

TEST(GgufTokensTest, SentencePiece) {
  GgufMetadata metadata =
      Metadata("llama", {"<unk>", "<s>", "<0x0A>", "<0xfe>", "\u2581the", "a\u2581b", "\u2581\u2581", "<0x41>"});
  metadata["tokenizer.ggml.token_type"] = Integers{2, 3, 6, 6, 1, 1, 4, 1};
  auto table = TokenTableFromGguf(metadata);
  ASSERT_TRUE(table.ok()) << table.status().ToString();
  EXPECT_EQ(table->bytes, (Strings{"<unk>", "<s>", "\n", "\xFE", " the", "a b", "  ", "<0x41>"}));
  EXPECT_EQ(table->special, (std::vector<uint8_t>{1, 1, 0, 0, 0, 0, 0, 0}));
  // At the start of a text one space mark is taken off, but no space that is a byte token.
  EXPECT_EQ(table->first_bytes, (Strings{"<unk>", "<s>", "\n", "\xFE", "the", "a b", " ", "<0x41>"}));
  EXPECT_EQ(table->first_bytes_until, FirstBytesUntil::kBytes);
  EXPECT_EQ(table->invalid_bytes, InvalidBytes::kReplaceEach);
  metadata["tokenizer.ggml.add_space_prefix"] = false;
  table = TokenTableFromGguf(metadata);
  ASSERT_TRUE(table.ok());
  EXPECT_TRUE(table->first_bytes.empty());
}

TEST(GgufTokensTest, SentencePieceWithoutTypesKnowsByteTokensByForm) {
  auto table = TokenTableFromGguf(Metadata("llama", {"<0x0A>", "<0xZZ>", "<0x0A", "x"}));
  ASSERT_TRUE(table.ok());
  EXPECT_EQ(table->bytes, (Strings{"\n", "<0xZZ>", "<0x0A", "x"}));
}

TEST(GgufTokensTest, Refusals) {
  const auto expect = [](const GgufMetadata& metadata, StatusCode code, const std::string& text) {
    const Status status = TokenTableFromGguf(metadata).status();
    EXPECT_EQ(status.code(), code) << status.ToString();
    EXPECT_NE(status.message().find(text), std::string::npos) << status.ToString() << " lacks: " << text;
  };
  expect({}, StatusCode::kNotFound, "no tokenizer.ggml.model");
  expect({{"tokenizer.ggml.model", std::string("gpt2")}}, StatusCode::kNotFound, "no tokens");
  expect(Metadata("gpt2", {}), StatusCode::kNotFound, "no tokens");
  expect({{"tokenizer.ggml.model", std::string("no_vocab")}}, StatusCode::kNotFound, "no tokenizer");
  expect(Metadata("none", {"a"}), StatusCode::kNotFound, "is 'none'");
  expect(Metadata("bert", {"a"}), StatusCode::kUnimplemented, "'bert'; 'gpt2' and 'llama'");
  GgufMetadata metadata = Metadata("llama", {"a", "b"});
  metadata["tokenizer.ggml.token_type"] = Integers{1};
  expect(metadata, StatusCode::kDataLoss, "1 entries for 2 tokens");
  metadata["tokenizer.ggml.token_type"] = Integers{1, 7};
  expect(metadata, StatusCode::kDataLoss, "token 1 has the token_type 7");
  metadata["tokenizer.ggml.token_type"] = Integers{1, -1};
  expect(metadata, StatusCode::kDataLoss, "token_type -1");
  metadata["tokenizer.ggml.token_type"] = Integers{1, 6};
  expect(metadata, StatusCode::kDataLoss, "token 1 is a byte token, but its text 'b'");
  metadata["tokenizer.ggml.token_type"] = std::string("x");
  expect(metadata, StatusCode::kDataLoss, "not an array of integers");
  metadata.erase("tokenizer.ggml.token_type");
  metadata["tokenizer.ggml.add_space_prefix"] = int64_t{1};
  expect(metadata, StatusCode::kDataLoss, "not a bool");
  metadata["tokenizer.ggml.tokens"] = Integers{1};
  expect(metadata, StatusCode::kDataLoss, "not an array of strings");
  metadata["tokenizer.ggml.model"] = int64_t{1};
  expect(metadata, StatusCode::kDataLoss, "not a string");
}

}  // namespace
}  // namespace fastllm::runtime
