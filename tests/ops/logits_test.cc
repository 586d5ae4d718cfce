#include <cmath>
#include <cstring>

#include "logits_support.h"

namespace fastllm::ops {
namespace {

using ProcessLogits = ArmTest;

std::vector<int32_t> RandomIds(std::mt19937_64& rng, int n, int vocab) {
  std::vector<int32_t> ids(n);
  for (int32_t& id : ids) id = static_cast<int32_t>(rng() % vocab);
  return ids;
}

// Everything that a LogitsRow points to.
struct Request {
  std::vector<int32_t> bitmask, allowed, bad_words, min_tokens, history, breakers;
  std::vector<TokenBias> bias;
  std::vector<TokenCount> counts;
  LogitsRow row;

  // Each feature is on with probability 1/2, and its lists may be empty and hold ids outside the vocabulary.
  Request(uint64_t seed, int vocab) {
    std::mt19937_64 rng(seed);
    const auto on = [&rng] { return rng() % 2 == 0; };
    const auto some = [&rng] { return static_cast<int>(rng() % 9); };
    if (on()) {
      for (int w = 0; w < (vocab + 31) / 32; ++w) {
        bitmask.push_back(rng() % 4 == 0 ? -1 : rng() % 3 == 0 ? 0 : static_cast<int32_t>(rng()));
      }
      row.bitmask = bitmask.data();
    }
    if (rng() % 4 == 0) {
      allowed = RandomIds(rng, 1 + some(), vocab + 3);
      allowed.push_back(allowed[0]);  // twice
      row.allowed = ListOf(allowed);
    }
    if (on()) bad_words = RandomIds(rng, some(), vocab + 3);
    if (on()) min_tokens = RandomIds(rng, some(), vocab + 3);
    bad_words.push_back(-1);
    if (on()) {
      for (const int32_t id : RandomIds(rng, some(), vocab + 3)) bias.push_back({id, 0.25f * some() - 1});
    }
    history = RandomIds(rng, 120, std::min(vocab, 5));
    if (on()) {
      std::map<int32_t, TokenCount> seen;
      for (const int32_t id : RandomIds(rng, 3 * some(), vocab + 3)) {
        seen[id].id = id;
        if (on()) ++seen[id].output_count;
        if (on()) seen[id].in_prompt = true;
      }
      for (const auto& [id, c] : seen) counts.push_back(c);
    }
    row.bad_words = ListOf(bad_words);
    row.min_tokens = ListOf(min_tokens);
    row.logit_bias = ListOf(bias);
    row.counts = ListOf(counts);
    if (on()) row.repetition_penalty = on() ? 1.3f : 0.7f;
    if (on()) row.frequency_penalty = on() ? 0.6f : -0.4f;
    if (on()) row.presence_penalty = on() ? 0.9f : -1.1f;
    if (on()) {
      breakers = {1, 3};
      if (on()) breakers.clear();
      row.dry = {0.8f,
                 1.2f,
                 static_cast<int32_t>(rng() % 4),
                 static_cast<int32_t>(rng() % 2 * 50),
                 ListOf(history),
                 ListOf(breakers)};
    }
  }
  Request(const Request&) = delete;
};

TEST_P(ProcessLogits, MatchesFloat64WithAnyMixOfFeatures) {
  const auto fn = Get<ProcessLogitsFn>(OpId::kProcessLogits);
  for (uint64_t seed = 0; seed < 400; ++seed) {
    const int vocabs[] = {1, 7, 31, 32, 33, 64, 200, 1023};
    const int vocab = vocabs[seed % 8];
    SCOPED_TRACE(testing::Message() << "seed " << seed << " vocab " << vocab);
    const Request q(seed, vocab);
    const auto x = RandomNormal(vocab, seed, 3.0f);
    ExpectNear(ProcessAlone(fn, x, q.row), ProcessReference(x, q.row), 1e-6);
  }
}

TEST_P(ProcessLogits, RowsAreIndependentAndPaddingIsLeftAlone) {
  const auto fn = Get<ProcessLogitsFn>(OpId::kProcessLogits);
  const int rows = 40, vocab = 999, stride = 1003;
  const auto x = RandomNormal(rows * stride, 3, 2.0f);
  std::vector<std::unique_ptr<Request>> requests;
  std::vector<LogitsRow> how;
  for (int r = 0; r < rows; ++r) {
    requests.push_back(std::make_unique<Request>(r, vocab));
    how.push_back(r % 5 == 0 ? LogitsRow{} : requests[r]->row);
  }
  std::vector<float> want = x;
  for (int r = 0; r < rows; ++r) {
    const auto first = x.begin() + r * stride;
    const auto alone = ProcessAlone(fn, {first, first + vocab}, how[r]);
    std::copy(alone.begin(), alone.end(), want.begin() + r * stride);
  }
  for (const int threads : {1, 2, 5}) {
    auto got = x;
    ProcessLogitsParams p;
    p.logits = got.data();
    p.rows = how.data();
    p.logits_stride = stride;
    p.num_rows = rows;
    p.vocab = vocab;
    fn(p, {nullptr, threads});
    EXPECT_EQ(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)), 0) << threads;
    // From another place, which is left as it was, with another stride.
    std::vector<float> apart(rows * vocab, 88.0f);
    const auto raw = x;
    p.logits = apart.data();
    p.logits_stride = vocab;
    p.from = raw.data();
    p.from_stride = stride;
    fn(p, {nullptr, threads});
    EXPECT_EQ(raw, x);
    for (int r = 0; r < rows; ++r) {
      EXPECT_TRUE(std::equal(&apart[r * vocab], &apart[r * vocab] + vocab, &want[r * stride])) << r;
    }
  }
}

TEST_P(ProcessLogits, PenaltiesByHand) {
  const auto fn = Get<ProcessLogitsFn>(OpId::kProcessLogits);
  LogitsRow row;
  row.repetition_penalty = 2.0f;
  row.frequency_penalty = 0.5f;
  row.presence_penalty = 0.25f;
  // Prompt only; output three times; both; neither.
  const std::vector<TokenCount> counts = {{0, 0, true}, {1, 3, false}, {2, 1, true}, {3, 0, false}};
  row.counts = ListOf(counts);
  EXPECT_EQ(ProcessAlone(fn, {4, 4, -4, 4, 4}, row), (std::vector<float>{2, 0.25f, -8.75f, 4, 4}));
  row.repetition_penalty = 1.0f;
  EXPECT_EQ(ProcessAlone(fn, {4, 4, -4, 4, 4}, row), (std::vector<float>{4, 2.25f, -4.75f, 4, 4}));
  EXPECT_EQ(ProcessAlone(fn, {-kInf, -kInf, kInf, 0, 0}, row), (std::vector<float>{-kInf, -kInf, kInf, 0, 0}));
}

TEST_P(ProcessLogits, OrderIsMasksThenBiasThenPenalties) {
  const auto fn = Get<ProcessLogitsFn>(OpId::kProcessLogits);
  const std::vector<int32_t> words = {0b01111}, allowed = {0, 1, 2, 4}, ban = {1}, early = {2};
  const std::vector<TokenBias> bias = {{0, 3}, {1, 100}, {2, 100}, {3, 100}, {4, 100}, {0, -1}};
  const std::vector<TokenCount> counts = {{0, 1, false}};
  LogitsRow row;
  row.logit_bias = ListOf(bias);
  row.counts = ListOf(counts);
  row.repetition_penalty = 2.0f;
  // -1 + 3 - 1 = 1 is positive, so the penalty divides: the bias comes first.
  EXPECT_EQ(ProcessAlone(fn, {-1, 0, 0, 0, 0}, row), (std::vector<float>{0.5f, 100, 100, 100, 100}));
  row.bitmask = words.data();
  EXPECT_EQ(ProcessAlone(fn, {-1, 0, 0, 0, 0}, row), (std::vector<float>{0.5f, 100, 100, 100, -kInf}));
  row.allowed = ListOf(allowed);
  row.bad_words = ListOf(ban);
  row.min_tokens = ListOf(early);
  EXPECT_EQ(ProcessAlone(fn, {-1, 0, 0, 0, 0}, row), (std::vector<float>{0.5f, -kInf, -kInf, -kInf, -kInf}));
}

TEST_P(ProcessLogits, EmptyListsChangeNothingButAnEmptyAllowedListLeavesNothing) {
  const auto fn = Get<ProcessLogitsFn>(OpId::kProcessLogits);
  const std::vector<float> x = {1, -kInf, std::nanf(""), kInf};
  LogitsRow row;
  row.repetition_penalty = 5.0f;
  row.frequency_penalty = row.presence_penalty = 1.0f;
  row.dry.multiplier = 2.0f;
  auto got = ProcessAlone(fn, x, row);
  EXPECT_EQ(std::memcmp(got.data(), x.data(), sizeof(float) * 4), 0);
  const int32_t none = 0;
  row.allowed = {&none, 0};
  EXPECT_EQ(ProcessAlone(fn, x, row), std::vector<float>(4, -kInf));
}

TEST_P(ProcessLogits, DryByHand) {
  const auto fn = Get<ProcessLogitsFn>(OpId::kProcessLogits);
  // ... 1 2 3 | 4 ... 2 3 | 5 ... 1 2 3: after 1 2 3 came 4 (match of 3), after 2 3 came 5 (match of 2).
  const std::vector<int32_t> history = {1, 2, 3, 4, 2, 3, 5, 1, 2, 3};
  LogitsRow row;
  row.dry.multiplier = 0.5f;
  row.dry.base = 2.0f;
  row.dry.history = ListOf(history);
  const std::vector<float> zero(8, 0.0f);
  EXPECT_EQ(ProcessAlone(fn, zero, row), (std::vector<float>{0, 0, 0, 0, -1, -0.5f, 0, 0}));
  row.dry.allowed_length = 3;
  EXPECT_EQ(ProcessAlone(fn, zero, row), (std::vector<float>{0, 0, 0, 0, -0.5f, 0, 0, 0}));
  row.dry.allowed_length = 0;
  EXPECT_EQ(ProcessAlone(fn, zero, row), (std::vector<float>{0, 0, 0, 0, -4, -2, 0, 0}));
  row.dry.allowed_length = 2;
  row.dry.range = 6;  // 2 3 5 1 2 3
  EXPECT_EQ(ProcessAlone(fn, zero, row), (std::vector<float>{0, 0, 0, 0, 0, -0.5f, 0, 0}));
  row.dry.range = 0;
  const std::vector<int32_t> at_start = {1}, in_match = {2}, next = {4}, last = {3};
  row.dry.breakers = ListOf(at_start);  // the match 1 2 3 shrinks to 2 3
  EXPECT_EQ(ProcessAlone(fn, zero, row), (std::vector<float>{0, 0, 0, 0, -0.5f, -0.5f, 0, 0}));
  row.dry.breakers = ListOf(in_match);
  EXPECT_EQ(ProcessAlone(fn, zero, row), zero);
  row.dry.breakers = ListOf(next);
  EXPECT_EQ(ProcessAlone(fn, zero, row), (std::vector<float>{0, 0, 0, 0, 0, -0.5f, 0, 0}));
  row.dry.breakers = ListOf(last);
  EXPECT_EQ(ProcessAlone(fn, zero, row), zero);
}

TEST_P(ProcessLogits, DryOfALongRepetitionIsLinearAndFinite) {
  const auto fn = Get<ProcessLogitsFn>(OpId::kProcessLogits);
  // A quadratic match would take 2e10 comparisons.
  const std::vector<int32_t> same(200000, 1);
  LogitsRow row;
  row.dry.multiplier = 1.0f;
  row.dry.history = ListOf(same);
  const auto got = ProcessAlone(fn, {0, 5, 0}, row);
  EXPECT_EQ(got, (std::vector<float>{0, -std::numeric_limits<float>::max(), 0}));
}

FASTLLM_INSTANTIATE_ARMS(ProcessLogits);

}  // namespace
}  // namespace fastllm::ops
