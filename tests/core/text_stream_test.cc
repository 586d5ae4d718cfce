#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/text/text_stream.h"

namespace fastllm {
namespace {

using Ids = std::vector<TokenId>;

// Token ids in the tables below: 0 <s> special, 1 </s> special, then the given fragments.
std::shared_ptr<const TokenTable> Table(const std::vector<std::string>& fragments, bool strip = false) {
  auto table = std::make_shared<TokenTable>();
  table->bytes = {"<s>", "</s>"};
  table->special = {1, 1};
  for (const std::string& f : fragments) table->bytes.push_back(f), table->special.push_back(0);
  table->strip_leading_space = strip;
  return table;
}

Request MakeRequest(std::vector<std::string> stop = {}, Ids prompt = {0}) {
  Request request;
  request.prompt = std::move(prompt);
  request.sampling.stop = std::move(stop);
  return request;
}

// The whole output, delivered one token at a time.
struct Output {
  std::string text;
  Ids ids;
  std::vector<int32_t> offsets;
  std::string stop;
  std::vector<std::string> portions;
};

Output Generate(const std::shared_ptr<const TokenTable>& table, const Request& request, const Ids& ids,
                FinishReason finish = FinishReason::kLength, std::mt19937* rng = nullptr) {
  TextStream stream(table, request);
  Output out;
  for (size_t at = 0; at < ids.size();) {
    const size_t n = rng == nullptr ? 1 : std::min<size_t>(ids.size() - at, 1 + (*rng)() % 5);
    const bool last = at + n == ids.size();
    const TextUpdate u = stream.Append(std::span(ids).subspan(at, n), last ? finish : FinishReason::kNone);
    EXPECT_TRUE(IsValidUtf8(u.text));
    out.text += u.text;
    out.portions.push_back(u.text);
    out.ids.insert(out.ids.end(), ids.begin() + at, ids.begin() + at + u.num_tokens);
    EXPECT_EQ(u.text_offsets.size(), u.num_tokens);
    out.offsets.insert(out.offsets.end(), u.text_offsets.begin(), u.text_offsets.end());
    at += n;
    if (u.stop_string) {
      out.stop = *u.stop_string;
      break;
    }
  }
  return out;
}

TEST(Detokenizer, SpecialTokens) {
  const auto table = Table({"Hello", " world"});
  Request request = MakeRequest();
  EXPECT_EQ(Generate(table, request, {2, 0, 3}).text, "Hello world");
  request.sampling.skip_special_tokens = false;
  EXPECT_EQ(Generate(table, request, {2, 0, 3}).text, "Hello<s> world");
}

TEST(Detokenizer, IdsOutsideTheTableHaveNoText) {
  EXPECT_EQ(Generate(Table({"a", "b"}), MakeRequest(), {2, 999, -1, 3}).text, "ab");
}

TEST(Detokenizer, LeadingSpaceIsDroppedOnlyWhenThePromptHasNoText) {
  const auto strip = Table({" Hello", " world", ""}, /*strip=*/true);
  EXPECT_EQ(Generate(strip, MakeRequest({}, {0}), {2, 3}).text, "Hello world");
  EXPECT_EQ(Generate(strip, MakeRequest({}, {0, 4}), {0, 4, 2, 3}).text,
            "Hello world");  // empty and special come first
  EXPECT_EQ(Generate(strip, MakeRequest({}, {0, 2}), {2, 3}).text, " Hello world");
  EXPECT_EQ(Generate(Table({" Hello"}), MakeRequest({}, {0}), {2}).text, " Hello");
  Request shown = MakeRequest({}, {0});
  shown.sampling.skip_special_tokens = false;  // now <s> is text of the prompt
  EXPECT_EQ(Generate(strip, shown, {2}).text, " Hello");
}

TEST(Detokenizer, IncompleteCharacterIsFlushedAtFinish) {
  const auto table = Table({"\xF0\x9F", "\x98\x80", "ok"});
  const Output whole = Generate(table, MakeRequest(), {4, 2, 3, 4});
  EXPECT_EQ(whole.portions, (std::vector<std::string>{"ok", "", "\xF0\x9F\x98\x80", "ok"}));
  EXPECT_EQ(Generate(table, MakeRequest(), {4, 2}).text, "ok\xEF\xBF\xBD");
  EXPECT_EQ(Generate(table, MakeRequest(), {2, 4}).text, "\xEF\xBF\xBDok");
}

TEST(TextOffsets, AreCharactersInFrontOfATokensOwnText) {
  const auto table = Table({"\xC3\xA9t", "\xF0\x9F", "\x98\x80", "ok", "\xE2"});
  // ét | two halves of one character | ok
  EXPECT_EQ(Generate(table, MakeRequest(), {2, 3, 4, 5}).offsets, (std::vector<int32_t>{0, 2, 2, 3}));
  // Special tokens and ids without text stand where the text has got to.
  EXPECT_EQ(Generate(table, MakeRequest(), {0, 5, 1, 99, 5}).offsets, (std::vector<int32_t>{0, 0, 2, 2, 2}));
  // A token that proves an unfinished character broken stands behind its replacement.
  EXPECT_EQ(Generate(table, MakeRequest(), {6, 5, 6, 6, 5}).offsets, (std::vector<int32_t>{0, 1, 3, 4, 5}));
  // What is held back counts; tokens after the match are gone.
  EXPECT_EQ(Generate(table, MakeRequest({"okokt"}), {5, 5, 5}).offsets, (std::vector<int32_t>{0, 2, 4}));
  EXPECT_EQ(Generate(table, MakeRequest({"kok"}), {5, 5, 5}).offsets, (std::vector<int32_t>{0, 2}));
  // A stop token, and the dropped space at the start.
  EXPECT_EQ(Generate(table, MakeRequest(), {5, 6, 2}, FinishReason::kStop).offsets, (std::vector<int32_t>{0, 2, 3}));
  EXPECT_EQ(Generate(Table({" a", "b"}, true), MakeRequest(), {2, 3, 2}).offsets, (std::vector<int32_t>{0, 1, 2}));
}

TEST(StopStrings, IncompleteCharacterBeforeAStopTokenIsShown) {
  const auto table = Table({"a", "\xE2\x82"});
  EXPECT_EQ(Generate(table, MakeRequest(), {2, 3, 1}, FinishReason::kStop).text, "a\xEF\xBF\xBD");
}

TEST(StopStrings, TextOfASpecialTokenStopsThoughItIsNotShown) {
  const auto table = Table({"a", "\xE2", "</s>x"});
  const Output out = Generate(table, MakeRequest({"zz", "</s>"}), {2, 3, 1, 2});
  EXPECT_EQ(out.text, "a\xEF\xBF\xBD");
  EXPECT_EQ(out.stop, "</s>");
  EXPECT_EQ(out.ids, (Ids{2, 3, 1}));
  EXPECT_EQ(out.offsets, (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(Generate(table, MakeRequest({"/s"}), {2, 1, 2}).text, "aa");  // another text than the token's
  EXPECT_EQ(Generate(table, MakeRequest({"</s>"}), {2, 4}).text, "a");    // the same in plain text
  EXPECT_EQ(Generate(table, MakeRequest({"\xEF\xBF\xBD", "</s>"}), {3, 1}).stop, "\xEF\xBF\xBD");
  Request request = MakeRequest({"</s>"});
  request.sampling.min_tokens = 2;
  EXPECT_EQ(Generate(table, request, {2, 1, 2, 1, 2}).ids, (Ids{2, 1, 2, 1}));
  request.sampling.skip_special_tokens = false;
  EXPECT_EQ(Generate(table, request, {2, 1, 2, 1, 2}).text, "a</s>a");
}

TEST(StopStrings, TruncatesAtItsStart) {
  const auto table = Table({"a", "b", "c", "xSTy", "OP"});
  EXPECT_EQ(Generate(table, MakeRequest({"bc"}), {2, 3, 4, 2}).text, "a");
  const Output out = Generate(table, MakeRequest({"bc"}), {2, 3, 4, 2});
  EXPECT_EQ(out.stop, "bc");
  EXPECT_EQ(out.ids, (Ids{2, 3, 4}));  // the ids of the stop string stay
}

TEST(StopStrings, InsideOneToken) {
  const Output out = Generate(Table({"xSTOPy", "z"}), MakeRequest({"STOP"}), {3, 2, 3});
  EXPECT_EQ(out.text, "zx");
  EXPECT_EQ(out.ids, (Ids{3, 2}));
}

TEST(StopStrings, IncludedWhenAsked) {
  Request request = MakeRequest({"STOP"});
  request.sampling.include_stop_str_in_output = true;
  EXPECT_EQ(Generate(Table({"xSTOPy", "z"}), request, {3, 2, 3}).text, "zxSTOP");
  const Output out = Generate(Table({"ST", "OPy"}), request, {2, 3});
  EXPECT_EQ(out.portions, (std::vector<std::string>{"ST", "OP"}));  // nothing is held back
}

TEST(StopStrings, EarliestCompletingWinsThenListOrder) {
  const auto table = Table({"a", "b", "c", "d", "abcd"});
  EXPECT_EQ(Generate(table, MakeRequest({"abcd", "bc"}), {2, 3, 4, 5}).stop, "bc");
  EXPECT_EQ(Generate(table, MakeRequest({"abcd", "bc"}), {6}).stop, "bc");  // the same inside one token
  EXPECT_EQ(Generate(table, MakeRequest({"abcd", "bc"}), {6}).text, "a");
  EXPECT_EQ(Generate(table, MakeRequest({"c", "abc"}), {6}).stop, "c");
  EXPECT_EQ(Generate(table, MakeRequest({"c", "abc"}), {6}).text, "ab");
  EXPECT_EQ(Generate(table, MakeRequest({"abc", "c"}), {6}).stop, "abc");
  EXPECT_EQ(Generate(table, MakeRequest({"abc", "c"}), {6}).text, "");
}

TEST(StopStrings, SelfOverlappingPattern) {
  const auto table = Table({"a", "b"});
  EXPECT_EQ(Generate(table, MakeRequest({"aab"}), {2, 2, 2, 3}).text, "a");
  EXPECT_EQ(Generate(table, MakeRequest({"abab"}), {2, 3, 2, 2, 3, 2, 3}).text, "aba");
}

TEST(StopStrings, HoldsBackOnlyWhatMayBeginOne) {
  const auto table = Table({"\xC3\xA9", "a", "x"});  // é
  const Output out = Generate(table, MakeRequest({"xyz", "\xC3\xA9q"}), {2, 3, 2, 2, 4, 4, 3, 4});
  EXPECT_EQ(out.portions, (std::vector<std::string>{"",
                                                    "\xC3\xA9"
                                                    "a",
                                                    "", "\xC3\xA9", "\xC3\xA9", "x", "xa", "x"}));
}

TEST(StopStrings, ThePartHeldIsTheLongestThatBeginsAStopString) {
  std::mt19937 rng(5);
  const auto table = Table({"a", "b", "ab", "ba", "aab"});
  for (int round = 0; round < 500; ++round) {
    std::vector<std::string> stops(1 + rng() % 3);
    for (std::string& stop : stops) {
      for (size_t k = 0, len = rng() % 6; k < len; ++k) stop.push_back("ab"[rng() % 2]);
      stop.push_back('c');  // never comes, so nothing matches
    }
    TextStream stream(table, MakeRequest(stops));
    std::string whole, sent;
    for (int i = 0; i < 30; ++i) {
      const Ids ids = {static_cast<TokenId>(2 + rng() % 5)};
      whole += table->bytes[ids[0]];
      sent += stream.Append(ids).text;
      size_t held = 0;
      for (const std::string& stop : stops) {
        for (size_t n = 1; n < stop.size(); ++n) {
          if (whole.ends_with(stop.substr(0, n))) held = std::max(held, n);
        }
      }
      EXPECT_EQ(sent, whole.substr(0, whole.size() - held));
    }
  }
}

TEST(StopStrings, FirstMinTokensAreNotSearched) {
  const auto table = Table({"a", "b"});
  Request request = MakeRequest({"b"});
  request.sampling.min_tokens = 2;
  EXPECT_EQ(Generate(table, request, {3, 3, 2, 3, 2}).text, "bba");
  // A match may begin in that text; its last character may not lie in it.
  request.sampling.stop = {"ab"};
  EXPECT_EQ(Generate(table, request, {2, 2, 3}).text, "a");
  request.sampling.stop = {"aa"};
  EXPECT_EQ(Generate(table, request, {2, 2, 2, 2}).text, "a");  // passed over at 2, found again at 3
}

TEST(StopStrings, StopTokenTextIsLeftOut) {
  const auto table = Table({"a", "END"});
  Request request = MakeRequest({"ND"});
  Output out = Generate(table, request, {2, 3}, FinishReason::kStop);
  EXPECT_EQ(out.text, "a");
  EXPECT_EQ(out.ids, (Ids{2, 3}));
  EXPECT_EQ(out.stop, "");
  request.sampling.include_stop_str_in_output = true;
  out = Generate(table, request, {2, 3}, FinishReason::kStop);
  EXPECT_EQ(out.text, "aEND");
  EXPECT_EQ(out.stop, "ND");
  // A length finish searches its last token.
  EXPECT_EQ(Generate(table, MakeRequest({"ND"}), {2, 3}, FinishReason::kLength).text, "aE");
  EXPECT_EQ(Generate(table, MakeRequest({"ND"}), {2, 3}, FinishReason::kLength).stop, "ND");
}

TEST(StopStrings, AbortFlushesWhatIsHeld) {
  TextStream stream(Table({"lo"}), MakeRequest({"long stop"}));
  const Ids ids = {2};
  EXPECT_EQ(stream.Append(ids).text, "");
  const TextUpdate last = stream.Append({}, FinishReason::kAbort);
  EXPECT_EQ(last.text, "lo");
  EXPECT_EQ(last.num_tokens, 0u);
}

// The semantics of the page, stated directly on the whole text: search after every character.
struct Naive {
  std::string text, stop;
  size_t num_tokens = 0;
};

Naive RunNaive(const TokenTable& table, const Request& request, const Ids& ids) {
  Naive out;
  for (const TokenId id : ids) {
    ++out.num_tokens;
    for (const char c : table.special[id] ? "" : table.bytes[id]) {
      out.text += c;
      if (static_cast<int32_t>(out.num_tokens) <= request.sampling.min_tokens) continue;
      for (const std::string& stop : request.sampling.stop) {
        if (!out.text.ends_with(stop)) continue;
        out.stop = stop;
        if (!request.sampling.include_stop_str_in_output) out.text.resize(out.text.size() - stop.size());
        return out;
      }
    }
  }
  return out;
}

TEST(StopStrings, RandomPortionsGiveTheSameAsOneByOneAndTheNaiveSearch) {
  std::mt19937 rng(11);
  const auto table = Table({"a", "b", "ab", "ba", "aab", "bbb", "abba", "c"});
  int matched = 0;
  for (int round = 0; round < 3000; ++round) {
    Request request = MakeRequest();
    for (size_t i = 0, n = 1 + rng() % 3; i < n; ++i) {
      std::string stop;
      for (size_t k = 0, len = 1 + rng() % 6; k < len; ++k) stop += "abc"[rng() % 8 / 3];
      request.sampling.stop.push_back(stop);
    }
    request.sampling.min_tokens = static_cast<int32_t>(rng() % 5);
    request.sampling.include_stop_str_in_output = rng() % 2;
    Ids ids;
    for (size_t i = 0, n = 1 + rng() % 20; i < n; ++i) ids.push_back(static_cast<TokenId>(rng() % table->bytes.size()));
    const Naive expected = RunNaive(*table, request, ids);
    const Output single = Generate(table, request, ids);
    const Output split = Generate(table, request, ids, FinishReason::kLength, &rng);
    for (const Output* out : {&single, &split}) {
      EXPECT_EQ(out->text, expected.text);
      EXPECT_EQ(out->stop, expected.stop);
      EXPECT_EQ(out->ids.size(), expected.num_tokens);
      EXPECT_EQ(out->offsets, single.offsets);
    }
    matched += !expected.stop.empty();
  }
  EXPECT_GT(matched, 1000);
  EXPECT_LT(matched, 2900);
}

TEST(StopStrings, LongStopStringAgainstItsOwnPrefixStaysLinear) {
  const size_t n = 1 << 18;
  const auto table = Table({"a"});
  std::string stop(n, 'a');
  stop.push_back('b');
  TextStream stream(table, MakeRequest({stop}));
  const Ids ids(1, 2);
  size_t sent = 0;
  for (size_t i = 0; i < n + 1000; ++i) sent += stream.Append(ids).text.size();
  EXPECT_EQ(sent, 1000u);
  EXPECT_EQ(stream.Append({}, FinishReason::kLength).text.size(), n);
}

}  // namespace
}  // namespace fastllm
