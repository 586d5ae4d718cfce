#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/text/byte_run.h"
#include "core/text/detokenizer.h"

namespace fastllm {
namespace {

using Ids = std::vector<TokenId>;
using Strings = std::vector<std::string>;

const std::string kBad = "\xEF\xBF\xBD";

TokenTable Plain(Strings bytes) {
  TokenTable table;
  table.special.assign(bytes.size(), 0);
  table.bytes = std::move(bytes);
  return table;
}

std::string Text(const TokenTable& table, const Ids& ids, const Ids& prompt = {}, DetokenizerOptions options = {}) {
  Detokenizer detokenizer(std::make_shared<TokenTable>(table), prompt, options);
  std::string text;
  for (const TokenId id : ids) detokenizer.Append(id, &text);
  detokenizer.Flush(&text);
  EXPECT_EQ(detokenizer.num_chars(), CountUtf8Chars(text));
  return text;
}

// Expected values below were taken from the libraries (tokenizers 0.23, sentencepiece 0.2) or are their documented
// rule.
TEST(TokenTable, FirstTokenHasBytesOfItsOwn) {
  TokenTable table = Plain({" un", "able", " [SEP]"});  // WordPiece: un ##able [SEP]
  table.first_bytes = {"un", "##able", "[SEP]"};
  table.special = {0, 0, 1};
  EXPECT_EQ(Text(table, {0, 1, 0}), "unable un");
  EXPECT_EQ(Text(table, {1, 1}), "##ableable");
  EXPECT_EQ(Text(table, {2, 7, 0}), "un");  // what is left out is not the first
  EXPECT_EQ(Text(table, {0}, {2}), "un");
  EXPECT_EQ(Text(table, {0}, {1}), " un");  // the prompt had the first
  EXPECT_EQ(Text(table, {2, 0}, {}, {.skip_special_tokens = false}), "[SEP] un");
}

TEST(TokenTable, FirstBytesUntilTheTextHasBegun) {
  TokenTable table = Plain({" ", " a", "b", "  c"});  // sentencepiece
  table.first_bytes = {"", "a", "b", " c"};
  table.first_bytes_until = FirstBytesUntil::kBytes;
  EXPECT_EQ(Text(table, {1, 1}), "a a");
  EXPECT_EQ(Text(table, {0, 1}), " a");
  EXPECT_EQ(Text(table, {3, 3}), " c  c");
  EXPECT_EQ(Text(table, {1}, {0}), " a");
  table.first_bytes_until = FirstBytesUntil::kVisible;  // with remove_extra_whitespaces
  EXPECT_EQ(Text(table, {0, 0, 1, 1}), "a a");
  EXPECT_EQ(Text(table, {1}, {0}), "a");
  EXPECT_EQ(Text(table, {1}, {2}), " a");
  table.first_bytes_until = FirstBytesUntil::kToken;
  EXPECT_EQ(Text(table, {0, 1}), " a");
}

TEST(TokenTable, SpacesBetweenAddedTokens) {
  TokenTable table = Plain({" a", " <x>", " <y>"});
  table.first_bytes = {"a", "<x>", "<y>"};
  table.special = {0, 1, 0};
  table.added = {{1, "<x>"}, {2, "<y>"}};
  const DetokenizerOptions spaced{.skip_special_tokens = false};
  const DetokenizerOptions joined{.skip_special_tokens = false, .spaces_between_special_tokens = false};
  const Ids ids = {0, 1, 2, 0, 2, 1};
  EXPECT_EQ(Text(table, ids, {}, spaced), "a <x> <y> a <y> <x>");
  EXPECT_EQ(Text(table, ids, {}, joined), "a <x><y> a <y><x>");
  // Of no effect when special tokens are left out.
  EXPECT_EQ(Text(table, {0, 2, 2}, {}, {.spaces_between_special_tokens = false}), "a <y> <y>");
}

TEST(TokenTable, EachInvalidByteIsReplaced) {
  TokenTable table = Plain({"\xE2", "\x82", "\xAC", "a"});
  EXPECT_EQ(Text(table, {0, 1, 3}), kBad + "a");
  table.invalid_bytes = InvalidBytes::kReplaceEach;
  EXPECT_EQ(Text(table, {0, 1, 3}), kBad + kBad + "a");
  EXPECT_EQ(Text(table, {0, 1}), kBad + kBad);
  EXPECT_EQ(Text(table, {0, 1, 0, 1, 2}), kBad + kBad + "\xE2\x82\xAC");
  table.special[3] = 1;
  EXPECT_EQ(Text(table, {0, 1, 3, 2}), kBad + kBad + kBad);  // a token that is left out ends the character
  table.invalid_bytes = InvalidBytes::kReplacePart;
  EXPECT_EQ(Text(table, {0, 1, 3, 2}), "\xE2\x82\xAC");
}

TokenTable ByteFallback() {
  TokenTable table = Plain({"\xC3", "\xA9", "\xFF", "a", " ", "</s>"});
  table.special[5] = 1;
  table.invalid_bytes = InvalidBytes::kReplaceRun;
  table.byte_token = {1, 1, 1, 0, 1, 0};
  return table;
}

TEST(TokenTable, ARunOfByteTokensIsTextAsAWholeOrNotAtAll) {
  const TokenTable table = ByteFallback();
  EXPECT_EQ(Text(table, {0, 1}), "\xC3\xA9");
  EXPECT_EQ(Text(table, {0, 1, 2}), kBad + kBad + kBad);
  EXPECT_EQ(Text(table, {0, 1, 3, 2}),
            "\xC3\xA9"
            "a" +
                kBad);
  EXPECT_EQ(Text(table, {0, 3}), kBad + "a");
  EXPECT_EQ(Text(table, {2, 0, 1, 3, 0, 1}), kBad + kBad + kBad + "a\xC3\xA9");
  EXPECT_EQ(Text(table, {0, 5, 1}), "\xC3\xA9");  // what is left out does not end a run
  EXPECT_EQ(Text(table, {0, 0, 1}), kBad + kBad + kBad);
  EXPECT_EQ(Text(table, {4, 0, 3}), kBad + kBad + "a");
}

TEST(TokenTable, TheSpaceAtTheStartIsThatOfTheDecodedText) {
  TokenTable table = ByteFallback();
  table.strip_leading_space = true;
  EXPECT_EQ(Text(table, {4, 3}), "a");
  EXPECT_EQ(Text(table, {4, 4, 3}), " a");
  EXPECT_EQ(Text(table, {4, 2}), kBad + kBad);
  EXPECT_EQ(Text(table, {4, 3}, {3}), " a");
}

TEST(ByteRun, ShowsABrokenRunAtOnceAndALongOneInTime) {
  ByteRun run;
  std::string out;
  run.Append('a', &out);
  EXPECT_EQ(out, "");
  EXPECT_EQ(run.num_held_chars(), 1u);
  run.Append('\xFF', &out);
  EXPECT_EQ(out, kBad + kBad);
  for (int i = 0; i < 100000; ++i) run.Append('b', &out);
  EXPECT_EQ(out.size(), 3u * 100002);
  run.End(&out);
  EXPECT_EQ(out.size(), 3u * 100002);

  out.clear();
  for (size_t i = 0; i <= ByteRun::kMaxHeld; ++i) run.Append('c', &out);
  EXPECT_EQ(out, std::string(ByteRun::kMaxHeld + 1, 'c'));
  run.Append('d', &out);
  run.Append('\x80', &out);  // what is out stays
  run.End(&out);
  EXPECT_EQ(out, std::string(ByteRun::kMaxHeld + 1, 'c') + kBad + kBad);
}

TEST(TokenTable, Refusals) {
  const auto message = [](const TokenTable& table) { return ValidateTokenTable(table).message(); };
  TokenTable table = ByteFallback();
  EXPECT_TRUE(ValidateTokenTable(table).ok());
  table.byte_token[5] = 1;
  EXPECT_EQ(message(table), "token table: byte_token 5 must stand for one byte, got 4");
  table.byte_token.pop_back();
  EXPECT_EQ(message(table), "token table: byte_token must have one entry per token (6), got 5");
  table.first_bytes = {"a"};
  EXPECT_EQ(message(table), "token table: first_bytes must have one entry per token (6), got 1");
  table.special.clear();
  EXPECT_EQ(message(table), "token table: special must have one entry per token (6), got 0");
}

}  // namespace
}  // namespace fastllm
