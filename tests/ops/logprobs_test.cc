#include <cmath>
#include <cstring>
#include <numeric>

#include "logits_support.h"

namespace fastllm::ops {
namespace {

using Logprobs = ArmTest;

struct Answer {
  float token_logprob = 123;
  int32_t token_rank = 123;
  std::vector<int32_t> top_ids;
  std::vector<float> top_logprobs, id_logprobs;
};

Answer Ask(LogprobsFn fn, const std::vector<float>& logits, LogprobsRow row, const std::vector<int32_t>& ids = {}) {
  Answer a;
  a.top_ids.assign(row.top_k, -7);
  a.top_logprobs.assign(row.top_k, 123);
  a.id_logprobs.assign(ids.size(), 123);
  row.ids = ListOf(ids);
  row.id_logprobs = a.id_logprobs.data();
  LogprobsParams p;
  p.logits = logits.data();
  p.rows = &row;
  p.token_logprobs = &a.token_logprob;
  p.token_ranks = &a.token_rank;
  p.top_ids = a.top_ids.data();
  p.top_logprobs = a.top_logprobs.data();
  p.logits_stride = static_cast<int64_t>(logits.size());
  p.top_stride = row.top_k;
  p.num_rows = 1;
  p.vocab = static_cast<int32_t>(logits.size());
  fn(p, {});
  return a;
}

// Log-softmax of every token. Compensated, so that 152064 terms cost nothing of float64.
std::vector<double> Reference(const std::vector<float>& x, double temperature) {
  const double max = *std::max_element(x.begin(), x.end());
  double sum = 0, lost = 0;
  for (const float v : x) {
    const double term = std::exp((v - max) / temperature) - lost, next = sum + term;
    lost = (next - sum) - term;
    sum = next;
  }
  std::vector<double> out;
  for (const float v : x) out.push_back((v - max) / temperature - std::log(sum));
  return out;
}

void ExpectLogprob(float got, double want) {
  if (std::isinf(want)) {
    EXPECT_EQ(static_cast<double>(got), want);
  } else {
    EXPECT_LE(std::abs(got - want), 2e-6 * std::max(1.0, std::abs(want) / 32)) << "want " << want;
  }
}

void CheckAll(LogprobsFn fn, const std::vector<float>& x, int32_t top_k, float temperature, int32_t token) {
  const auto vocab = static_cast<int32_t>(x.size());
  const auto want = Reference(x, temperature);
  std::vector<int32_t> order(vocab), ids = {0, vocab - 1, token, vocab / 2};
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return x[a] > x[b]; });
  const Answer a = Ask(fn, x, {temperature, token, top_k}, ids);
  ExpectLogprob(a.token_logprob, want[token]);
  EXPECT_EQ(a.token_rank, 1 + std::count_if(x.begin(), x.end(), [&](float v) { return v > x[token]; }));
  for (int32_t i = 0; i < std::min(top_k, vocab); ++i) {
    ASSERT_EQ(a.top_ids[i], order[i]) << "place " << i;
    ExpectLogprob(a.top_logprobs[i], want[order[i]]);
  }
  for (int32_t i = vocab; i < top_k; ++i) {
    EXPECT_EQ(a.top_ids[i], -1);
    EXPECT_TRUE(std::isnan(a.top_logprobs[i]));
  }
  for (size_t i = 0; i < ids.size(); ++i) ExpectLogprob(a.id_logprobs[i], want[ids[i]]);
}

TEST_P(Logprobs, MatchesFloat64) {
  const auto fn = Get<LogprobsFn>(OpId::kLogprobs);
  std::mt19937_64 rng(4);
  for (int i = 0; i < 250; ++i) {
    const int vocabs[] = {1, 2, 15, 17, 255, 256, 257, 513, 3000, 9001};
    const int vocab = vocabs[i % 10];
    const float scales[] = {0.0f, 0.01f, 1.0f, 4.0f, 30.0f}, temperatures[] = {1.0f, 0.3f, 1.0f, 2.3f};
    auto x = RandomNormal(vocab, i, scales[rng() % 5]);
    if (i % 3 == 0) {
      for (float& v : x) v = std::round(v);  // ties
    }
    if (i % 4 == 0) {
      for (int j = 0; j < vocab; ++j) {
        if (j % 7 != 0) x[j] = -kInf;
      }
    }
    const int32_t top_ks[] = {0, 1, 5, 20, 300, vocab, vocab + 3};
    SCOPED_TRACE(testing::Message() << "case " << i << " vocab " << vocab);
    CheckAll(fn, x, top_ks[rng() % 7], temperatures[rng() % 4], static_cast<int32_t>(rng() % vocab));
  }
}

// Where rounding is worst: many equal terms that weigh about as much as the maximum does.
TEST_P(Logprobs, SumsOfALargeVocabularyStayWithinTheBound) {
  const auto fn = Get<LogprobsFn>(OpId::kLogprobs);
  for (const int vocab : {49152, 152064}) {
    for (const float base : {0.0f, 17.3f, -41.77f}) {
      for (float gap = 0.0f; gap < 16.0f; gap += 1.37f) {
        for (const float temperature : {1.0f, 0.7f}) {
          std::vector<float> x(vocab, base);
          x[vocab / 3] = base + gap;
          const auto want = Reference(x, temperature);
          const Answer a = Ask(fn, x, {temperature, vocab / 3, 0}, {5});
          ExpectLogprob(a.token_logprob, want[vocab / 3]);
          ExpectLogprob(a.id_logprobs[0], want[5]);
        }
      }
    }
    CheckAll(fn, RandomNormal(vocab, 9, 3.0f), 20, 1.0f, 1234);
    CheckAll(fn, RandomNormal(vocab, 10, 9.0f), 200, 0.6f, 777);
  }
}

TEST_P(Logprobs, InfinitiesShareEverything) {
  const auto fn = Get<LogprobsFn>(OpId::kLogprobs);
  std::vector<float> x(600, 1.0f);
  x[300] = x[500] = kInf;
  x[2] = -kInf;
  const Answer a = Ask(fn, x, {1.0f, 500, 3}, {2, 3, 300});
  EXPECT_FLOAT_EQ(a.token_logprob, std::log(0.5f));
  EXPECT_EQ(a.token_rank, 1);
  EXPECT_EQ(a.top_ids, (std::vector<int32_t>{300, 500, 0}));
  EXPECT_EQ(a.top_logprobs[2], -kInf);
  EXPECT_EQ(a.id_logprobs[0], -kInf);
  EXPECT_EQ(a.id_logprobs[1], -kInf);
  EXPECT_FLOAT_EQ(a.id_logprobs[2], std::log(0.5f));
}

TEST_P(Logprobs, RowsWithoutADistributionAndIdsOutsideTheVocabulary) {
  const auto fn = Get<LogprobsFn>(OpId::kLogprobs);
  for (const int bad_at : {0, 255, 256, 599}) {
    auto x = RandomNormal(600, 2);
    x[bad_at] = std::nanf("");
    for (int kind = 0; kind < 2; ++kind) {
      if (kind == 1) std::fill(x.begin(), x.end(), -kInf);
      const Answer a = Ask(fn, x, {1.0f, 3, 2}, {4});
      EXPECT_TRUE(std::isnan(a.token_logprob) && std::isnan(a.top_logprobs[1]) && std::isnan(a.id_logprobs[0]));
      EXPECT_EQ(a.token_rank, 0);
      EXPECT_EQ(a.top_ids, (std::vector<int32_t>{-1, -1}));
    }
  }
  const Answer a = Ask(fn, {1, 2}, {1.0f, 2, 0}, {-1, 2, 1});
  EXPECT_TRUE(std::isnan(a.token_logprob) && std::isnan(a.id_logprobs[0]) && std::isnan(a.id_logprobs[1]));
  EXPECT_EQ(a.token_rank, 0);
  EXPECT_NEAR(a.id_logprobs[2], -std::log1p(std::exp(-1.0)), 1e-7);
}

TEST_P(Logprobs, SameBitsAloneInABatchOnAnyThreadsAndNothingElseIsWritten) {
  const auto fn = Get<LogprobsFn>(OpId::kLogprobs);
  const int rows = 30, vocab = 2000, stride = 2010, top_stride = 7;
  const auto x = RandomNormal(rows * stride, 6, 2.0f);
  std::vector<LogprobsRow> how(rows);
  for (int r = 0; r < rows; ++r) how[r] = {1.0f + 0.1f * (r % 3), r % 4 == 0 ? -1 : r * 60, r % 5 == 0 ? 0 : r % 8};
  for (const int threads : {1, 2, 5}) {
    std::vector<float> logprobs(rows, 55), top(rows * top_stride, 55);
    std::vector<int32_t> ranks(rows, 55), ids(rows * top_stride, 55);
    LogprobsParams p;
    p.logits = x.data();
    p.rows = how.data();
    p.token_logprobs = logprobs.data();
    p.token_ranks = ranks.data();
    p.top_ids = ids.data();
    p.top_logprobs = top.data();
    p.logits_stride = stride;
    p.top_stride = top_stride;
    p.num_rows = rows;
    p.vocab = vocab;
    fn(p, {nullptr, threads});
    for (int r = 0; r < rows; ++r) {
      Answer a = Ask(fn, {x.begin() + r * stride, x.begin() + r * stride + vocab}, how[r]);
      if (how[r].token < 0) a.token_logprob = 55, a.token_rank = 55;
      EXPECT_EQ(logprobs[r], a.token_logprob);
      EXPECT_EQ(ranks[r], a.token_rank);
      a.top_ids.resize(top_stride, 55);
      a.top_logprobs.resize(top_stride, 55);
      EXPECT_TRUE(std::equal(a.top_ids.begin(), a.top_ids.end(), &ids[r * top_stride])) << r;
      EXPECT_TRUE(std::equal(a.top_logprobs.begin(), a.top_logprobs.end(), &top[r * top_stride])) << r;
    }
  }
}

FASTLLM_INSTANTIATE_ARMS(Logprobs);

}  // namespace
}  // namespace fastllm::ops
