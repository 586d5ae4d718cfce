// The set of tokens that filters leave, through SampleParams::filtered.
#include <cmath>
#include <cstring>

#include "ops/cpu/philox.h"
#include "sample_support.h"

namespace fastllm::ops {
namespace {

const float kInf = std::numeric_limits<float>::infinity();

using SampleFilter = ArmTest;

SampleRow Warm(float temperature = 1.0f) {
  SampleRow row;
  row.temperature = temperature;
  row.write_filtered = true;
  return row;
}

TEST_P(SampleFilter, LeavesTheTokensOfTheExactDistribution) {
  const auto fn = Get<SampleFn>(OpId::kSample);
  std::mt19937_64 rng(17);
  int off = 0;
  const int trials = 300;
  for (int i = 0; i < trials; ++i) {
    const int vocabs[] = {1, 3, 250, 256, 257, 700, 5000};
    const int vocab = vocabs[rng() % 7];
    auto x = RandomNormal(vocab, rng(), 0.1f + static_cast<float>(rng() % 6));
    if (i % 3 == 0) {
      for (float& v : x) v = std::round(v);
    }
    const std::vector<int32_t> bans =
        i % 4 == 0 && vocab > 1 ? std::vector<int32_t>{vocab / 2} : std::vector<int32_t>{};
    SampleRow row = Warm(0.2f + 0.4f * static_cast<float>(rng() % 5));
    row.counter = i;
    if (rng() % 3 == 0) row.top_n_sigma = 0.5f + static_cast<float>(rng() % 4);
    if (rng() % 3 == 0) row.min_p = 0.03f;
    if (rng() % 2 == 0) row.top_k = 1 + static_cast<int32_t>(rng() % 400);
    if (rng() % 3 == 0) row.typical_p = 0.77f;
    if (rng() % 2 == 0) row.top_p = 0.87f;
    if (rng() % 3 == 0) row.xtc_probability = 1.0f, row.xtc_threshold = 0.03f;
    const auto p = ExactDistribution(x, row, bans, row.xtc_probability > 0);
    const auto got = Filtered(fn, x, row, bans);
    bool same = true;
    for (int t = 0; t < vocab; ++t) {
      EXPECT_TRUE(got[t] == -kInf || got[t] == x[t]) << "token " << t;
      same &= (got[t] != -kInf) == (p[t] > 0);
    }
    off += !same;  // a cut may fall on the other side of a token by rounding
  }
  EXPECT_LE(off, trials / 50);
}

TEST_P(SampleFilter, TopKIsExactWithTiesForEveryK) {
  const auto fn = Get<SampleFn>(OpId::kSample);
  for (const int vocab : {5, 256, 1000, 3000}) {
    auto x = RandomNormal(vocab, vocab, 1.5f);
    for (float& v : x) v = std::round(v);
    std::vector<int32_t> order(vocab);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return x[a] > x[b]; });
    for (int k = 1; k < vocab; k += 1 + k / 2) {
      SampleRow row = Warm();
      row.top_k = k;
      std::vector<float> want(vocab, -kInf);
      for (int i = 0; i < k; ++i) want[order[i]] = x[order[i]];
      EXPECT_EQ(Filtered(fn, x, row), want) << vocab << " top_k " << k;
    }
  }
}

TEST_P(SampleFilter, TopNSigmaByHand) {
  const auto fn = Get<SampleFn>(OpId::kSample);
  // Mean 2, standard deviation 2 over the finite ones: from 6 down to 6 - 2 n.
  const std::vector<float> x = {6, -kInf, 2, 0, 0, 2, 2};
  SampleRow row = Warm(7.0f);
  row.top_n_sigma = 1.9f;
  EXPECT_EQ(Filtered(fn, x, row), (std::vector<float>{6, -kInf, -kInf, -kInf, -kInf, -kInf, -kInf}));
  row.top_n_sigma = 2.2f;
  EXPECT_EQ(Filtered(fn, x, row), (std::vector<float>{6, -kInf, 2, -kInf, -kInf, 2, 2}));
  row.top_n_sigma = 3.3f;
  EXPECT_EQ(Filtered(fn, x, row), x);
  row.top_n_sigma = 1.0f;
  EXPECT_EQ(Filtered(fn, std::vector<float>(300, 1e4f), row), std::vector<float>(300, 1e4f));
  std::vector<float> wide = {3e38f, -3e38f, 0};  // the squares do not fit in float32
  EXPECT_EQ(Filtered(fn, wide, row)[0], 3e38f);
}

TEST_P(SampleFilter, XtcLeavesTheLeastLikelyOfTheTopChoices) {
  const auto fn = Get<SampleFn>(OpId::kSample);
  const auto log = [](double p) { return static_cast<float>(std::log(p)); };
  const std::vector<float> x = {log(0.4), log(0.05), log(0.2), log(0.2), log(0.15)};
  SampleRow row = Warm();
  row.xtc_probability = 1.0f;
  row.xtc_threshold = 0.19f;
  EXPECT_EQ(Filtered(fn, x, row), (std::vector<float>{-kInf, x[1], -kInf, x[3], x[4]}));  // of equals, the later
  row.xtc_threshold = 0.3f;
  EXPECT_EQ(Filtered(fn, x, row), x);  // one alone stays
  row.xtc_threshold = 0.6f;
  EXPECT_EQ(Filtered(fn, x, row), x);
  row.xtc_threshold = 0.1f;
  EXPECT_EQ(Filtered(fn, x, row), (std::vector<float>{-kInf, x[1], -kInf, -kInf, x[4]}));
  row.xtc_probability = 0.0f;
  EXPECT_EQ(Filtered(fn, x, row), x);
  row.temperature = 0.0f;  // greedy
  row.xtc_probability = 1.0f;
  EXPECT_EQ(Filtered(fn, x, row), x);
}

// The token and XTC's coin come from different streams: over counters, neither tells of the other.
TEST(Philox, StreamsAreUncorrelated) {
  const int n = 100000;
  double sum = 0;
  for (int c = 0; c < n; ++c) sum += (cpu::UniformDraw(5, c, 0) - 0.5) * (cpu::UniformDraw(5, c, 1) - 0.5);
  EXPECT_LT(std::abs(sum / n), 5.0 / 12 / std::sqrt(n));
}

TEST_P(SampleFilter, FilteredInPlaceEqualsFilteredElsewhereAndPicksTheSameTokens) {
  const auto fn = Get<SampleFn>(OpId::kSample);
  const int rows = 12, vocab = 700, stride = 705;
  const auto x = RandomNormal(rows * stride, 3, 2.0f);
  std::vector<SampleRow> how(rows);
  std::vector<int32_t> bans, ban_start = {0};
  for (int r = 0; r < rows; ++r) {
    how[r].temperature = r % 3 == 0 ? 0.0f : 0.9f;
    how[r].top_p = r % 2 == 0 ? 0.8f : 1.0f;
    how[r].top_k = r % 4 == 1 ? 20 : 0;
    how[r].seed = r;
    how[r].write_filtered = r != 5;
    if (r % 5 == 0) bans.insert(bans.end(), {r, r + 1});
    ban_start.push_back(static_cast<int32_t>(bans.size()));
  }
  std::vector<int32_t> plain(rows), apart(rows), in_place(rows);
  std::vector<float> out(x.size(), 77.0f), same = x;
  SampleParams p;
  p.logits = x.data();
  p.tokens = plain.data();
  p.rows = how.data();
  p.ban_ids = bans.data();
  p.ban_start = ban_start.data();
  p.logits_stride = stride;
  p.num_rows = rows;
  p.vocab = vocab;
  fn(p, {nullptr, 2});
  p.tokens = apart.data();
  p.filtered = out.data();
  fn(p, {nullptr, 2});
  p.tokens = in_place.data();
  p.logits = p.filtered = same.data();
  fn(p, {nullptr, 2});
  EXPECT_EQ(apart, plain);
  EXPECT_EQ(in_place, plain);
  for (int r = 0; r < rows; ++r) {
    const float* a = &out[r * stride];
    const float* b = &same[r * stride];
    if (r == 5) {
      EXPECT_TRUE(std::all_of(a, a + stride, [](float v) { return v == 77.0f; }));
      EXPECT_TRUE(std::equal(b, b + stride, &x[r * stride]));
      continue;
    }
    EXPECT_TRUE(std::equal(a, a + vocab, b)) << r;
    EXPECT_TRUE(std::all_of(a + vocab, a + stride, [](float v) { return v == 77.0f; })) << r;
    EXPECT_NE(a[plain[r]], -kInf);
    if (r % 5 == 0) {
      EXPECT_EQ(a[r], -kInf);
    }
  }
}

FASTLLM_INSTANTIATE_ARMS(SampleFilter);

}  // namespace
}  // namespace fastllm::ops
