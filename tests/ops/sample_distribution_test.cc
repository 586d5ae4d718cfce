// 200,000 draws against the exact distribution, by Pearson's chi-square. Seeds are fixed, so the outcome is too.
#include <cmath>

#include "sample_support.h"

namespace fastllm::ops {
namespace {

constexpr int kDraws = 200000;

// How far chi-square lies above its mean, in standard normal units (Wilson & Hilferty 1931). Cells that expect fewer
// than 10 draws are pooled.
double ChiSquareZ(const std::vector<int>& counts, const std::vector<double>& p) {
  double chi = 0, pooled_p = 0, pooled_n = 0;
  int cells = 0;
  const auto add = [&](double n, double expected) {
    chi += (n - expected) * (n - expected) / expected;
    ++cells;
  };
  for (size_t i = 0; i < p.size(); ++i) {
    if (p[i] * kDraws < 10) {
      pooled_p += p[i];
      pooled_n += counts[i];
    } else {
      add(counts[i], p[i] * kDraws);
    }
  }
  if (pooled_p > 0) add(pooled_n, pooled_p * kDraws);
  const double df = cells - 1;
  if (df == 0) return 0;
  return (std::cbrt(chi / df) - (1 - 2 / (9 * df))) / std::sqrt(2 / (9 * df));
}

struct Setting {
  float temperature, top_p, min_p;
  int32_t top_k;
  bool ban;
  float typical_p = 1, top_n_sigma = 0, xtc_probability = 0, xtc_threshold = 0;
};

constexpr Setting kSettings[] = {
    {1, 1, 0, 0, false},
    {0.5f, 1, 0, 0, false},
    {3, 1, 0, 0, true},
    {1, 0.8f, 0, 0, false},
    {1, 1, 0, 12, false},
    {1, 1, 0.1f, 0, false},
    {1.5f, 0.7f, 0, 20, true},
    {0.8f, 0.9f, 0.05f, 0, false},
    {2, 1, 0.02f, 9, false},
    {1.2f, 0.85f, 0.03f, 25, true},
    {1e-4f, 1, 0, 0, false},
    {1e5f, 0.5f, 0, 0, false},
    {1, 1, 0, 0, false, 0.7f},
    {1.6f, 0.9f, 0, 30, true, 0.8f},
    {1, 1, 0, 0, false, 1, 1.2f},
    {2, 0.9f, 0.01f, 0, true, 1, 1.5f},
    {1, 1, 0, 0, false, 1, 0, 0.6f, 0.05f},
    {1.3f, 0.95f, 0, 40, true, 1, 0, 0.3f, 0.04f},
    {1, 1, 0, 0, false, 1, 0, 1, 0.1f},
    {1.1f, 0.97f, 0.005f, 45, true, 0.95f, 2, 0.5f, 0.06f},
};

SampleRow RowOf(const Setting& s, uint64_t seed) {
  SampleRow row;
  row.temperature = s.temperature;
  row.top_p = s.top_p;
  row.min_p = s.min_p;
  row.top_k = s.top_k;
  row.typical_p = s.typical_p;
  row.top_n_sigma = s.top_n_sigma;
  row.xtc_probability = s.xtc_probability;
  row.xtc_threshold = s.xtc_threshold;
  row.seed = seed * 0x9E3779B97F4A7C15ull;
  return row;
}

// How often each token is drawn from the same logits with counters 0 .. kDraws - 1.
std::vector<int> CountDraws(SampleFn fn, const std::vector<float>& logits, const SampleRow& row,
                            const std::vector<int32_t>& bans) {
  const int batch = 1000;
  std::vector<SampleRow> rows(batch, row);
  std::vector<int32_t> tokens(batch), ban_ids, ban_start{0};
  for (int r = 0; r < batch; ++r) {
    ban_ids.insert(ban_ids.end(), bans.begin(), bans.end());
    ban_start.push_back(static_cast<int32_t>(ban_ids.size()));
  }
  SampleParams p;
  p.logits = logits.data();
  p.tokens = tokens.data();
  p.rows = rows.data();
  p.ban_ids = ban_ids.data();
  p.ban_start = ban_start.data();
  p.logits_stride = 0;  // every row reads the same logits
  p.num_rows = batch;
  p.vocab = static_cast<int32_t>(logits.size());
  std::vector<int> counts(logits.size());
  for (int first = 0; first < kDraws; first += batch) {
    for (int r = 0; r < batch; ++r) rows[r].counter = static_cast<uint64_t>(first) + r;
    fn(p, {});
    for (const int32_t t : tokens) ++counts.at(t);
  }
  return counts;
}

using SampleDistribution = ArmTest;

TEST_P(SampleDistribution, MatchesTheExactDistribution) {
  const auto fn = Get<SampleFn>(OpId::kSample);
  const int vocab = 60;
  auto logits = RandomNormal(vocab, 21, 2.0f);
  logits[10] = logits[20] = logits[30];  // ties
  uint64_t seed = 1;
  for (const Setting& s : kSettings) {
    SCOPED_TRACE(testing::Message() << "setting " << seed);
    const SampleRow row = RowOf(s, seed++);
    const std::vector<int32_t> bans = s.ban ? std::vector<int32_t>{3, 20} : std::vector<int32_t>{};
    const auto counts = CountDraws(fn, logits, row, bans);
    auto exact = ExactDistribution(logits, row, bans);
    if (s.xtc_probability > 0) {  // XTC's own draw mixes two distributions
      const auto struck = ExactDistribution(logits, row, bans, true);
      EXPECT_NE(struck, exact);
      for (int i = 0; i < vocab; ++i) exact[i] += s.xtc_probability * (struck[i] - exact[i]);
    }
    for (int i = 0; i < vocab; ++i) {
      if (exact[i] == 0) {
        EXPECT_EQ(counts[i], 0) << "token " << i << " should have been cut";
      }
    }
    EXPECT_LT(ChiSquareZ(counts, exact), 4.0);
  }
}

// The test above would be blind if the measure could not tell a wrong distribution.
TEST(ChiSquare, SeesADistributionThatIsOffByTwoPercent) {
  std::vector<double> p(20, 0.05);
  std::vector<int> counts(20, kDraws / 20);
  EXPECT_LT(ChiSquareZ(counts, p), 0.0);
  for (int i = 0; i < 10; ++i) {
    counts[i] += 200;
    counts[10 + i] -= 200;
  }
  EXPECT_GT(ChiSquareZ(counts, p), 4.0);
}

FASTLLM_INSTANTIATE_ARMS(SampleDistribution);

}  // namespace
}  // namespace fastllm::ops
