#include <cmath>
#include <limits>

#include "ops/cpu/philox.h"
#include "sample_support.h"

namespace fastllm::ops {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::nanf("");

SampleRow Row(float temperature, float top_p, float min_p, int32_t top_k, uint64_t seed, uint64_t counter) {
  SampleRow r;
  r.temperature = temperature;
  r.top_p = top_p;
  r.min_p = min_p;
  r.top_k = top_k;
  r.seed = seed;
  r.counter = counter;
  return r;
}

using Sample = ArmTest;

// Known answers of the reference implementation (Random123, kat_vectors: philox4x32 10).
TEST(Philox, KnownAnswers) {
  using A = std::array<uint32_t, 4>;
  EXPECT_EQ(cpu::Philox4x32({0, 0, 0, 0}, 0, 0), (A{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(cpu::Philox4x32({~0u, ~0u, ~0u, ~0u}, ~0u, ~0u), (A{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(cpu::Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0xa4093822, 0x299f31d0),
            (A{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST_P(Sample, GreedyIsTheFirstMaximum) {
  const auto fn = Get<SampleFn>(OpId::kSample);
  for (const int vocab : {1, 2, 15, 16, 17, 63, 64, 65, 1000, 1024, 1025, 5000}) {
    const auto x = RandomNormal(vocab, vocab);
    const auto want = static_cast<int32_t>(std::max_element(x.begin(), x.end()) - x.begin());
    EXPECT_EQ(SampleRowAlone(fn, x, SampleRow{}), want) << vocab;
    // The maximum at each place, and again at a later one.
    for (int at = 0; at < vocab; at += 1 + vocab / 37) {
      auto y = x;
      y[at] = 50.0f;
      y[vocab - 1] = 50.0f;
      EXPECT_EQ(SampleRowAlone(fn, y, SampleRow{}), at) << vocab;
    }
  }
  EXPECT_EQ(SampleRowAlone(fn, std::vector<float>(3000, -2.5f), SampleRow{}), 0);
  EXPECT_EQ(SampleRowAlone(fn, {-kInf, -kInf, -3.0f}, SampleRow{}), 2);
}

TEST_P(Sample, RowsWithoutAPickGiveMinusOneAndLeaveNeighboursAlone) {
  const auto fn = Get<SampleFn>(OpId::kSample);
  const int vocab = 333, stride = 340;
  for (const float temperature : {0.0f, 0.7f}) {
    auto good = RandomNormal(vocab, 1);
    for (const int bad_at : {0, 17, 320, 332}) {
      for (int kind = 0; kind < 4; ++kind) {
        std::vector<float> logits(3 * stride, kNan);
        for (int r = 0; r < 3; ++r) std::copy(good.begin(), good.end(), logits.begin() + r * stride);
        if (kind == 0) logits[stride + bad_at] = kNan;
        if (kind > 0) {
          const float fill = kind == 1 ? -kInf : kInf;
          std::fill_n(logits.begin() + stride, vocab, fill);
          if (kind == 3) logits[stride + bad_at] = -kInf;
        }
        std::vector<SampleRow> rows(3, Row(temperature, 0.9f, 0, 50, 9, 4));
        int32_t tokens[3];
        SampleParams p;
        p.logits = logits.data();
        p.tokens = tokens;
        p.rows = rows.data();
        p.logits_stride = stride;
        p.num_rows = 3;
        p.vocab = vocab;
        fn(p, {nullptr, 2});
        const int32_t want = SampleRowAlone(fn, good, rows[0]);
        EXPECT_EQ(tokens[0], want);
        EXPECT_EQ(tokens[1], -1) << "kind " << kind << " at " << bad_at;
        EXPECT_EQ(tokens[2], want);
      }
    }
  }
}

TEST_P(Sample, InfinityBesideFiniteLogitsTakesEverything) {
  const auto fn = Get<SampleFn>(OpId::kSample);
  std::vector<float> x(100, 1.0f);
  x[40] = x[60] = kInf;
  EXPECT_EQ(SampleRowAlone(fn, x, SampleRow{}), 40);
  int at40 = 0;
  for (int c = 0; c < 2000; ++c) {
    const int32_t t = SampleRowAlone(fn, x, Row(1, 1, 0, 0, 3, c));
    ASSERT_TRUE(t == 40 || t == 60) << t;
    at40 += t == 40;
    EXPECT_EQ(SampleRowAlone(fn, x, Row(1, 1, 0, 1, 3, c)), 40);
    EXPECT_EQ(SampleRowAlone(fn, x, Row(1, 0.4f, 0, 0, 3, c)), 40);
  }
  EXPECT_NEAR(at40, 1000, 5 * std::sqrt(500.0));
}

TEST_P(Sample, BansAreNeverPicked) {
  const auto fn = Get<SampleFn>(OpId::kSample);
  std::vector<float> x = {1, 5, 3, 4, 2};
  EXPECT_EQ(SampleRowAlone(fn, x, SampleRow{}, {}), 1);
  EXPECT_EQ(SampleRowAlone(fn, x, SampleRow{}, {1}), 3);
  EXPECT_EQ(SampleRowAlone(fn, x, SampleRow{}, {3, 1, 1}), 2);
  EXPECT_EQ(SampleRowAlone(fn, x, SampleRow{}, {3}), 1);
  EXPECT_EQ(SampleRowAlone(fn, x, SampleRow{}, {-1, 5, 1000000}), 1);  // outside the vocabulary: nothing to ban
  EXPECT_EQ(SampleRowAlone(fn, x, SampleRow{}, {0, 1, 2, 3, 4}), -1);
  EXPECT_EQ(SampleRowAlone(fn, x, Row(1, 1, 0, 0, 1, 1), {0, 1, 2, 3, 4}), -1);
  for (int c = 0; c < 500; ++c) {
    EXPECT_EQ(SampleRowAlone(fn, x, Row(3, 1, 0, 1, 1, c), {1}), 3);
    const int32_t t = SampleRowAlone(fn, x, Row(100, 1, 0, 0, 1, c), {1, 4});
    EXPECT_TRUE(t == 0 || t == 2 || t == 3) << t;
  }
  EXPECT_EQ(x, (std::vector<float>{1, 5, 3, 4, 2}));
}

TEST_P(Sample, ExtremesKeepOnlyTheBest) {
  const auto fn = Get<SampleFn>(OpId::kSample);
  auto x = RandomNormal(49152, 5, 2.0f);
  x[31000] = x[31001] = 20.0f;
  for (int c = 0; c < 20; ++c) {
    EXPECT_EQ(SampleRowAlone(fn, x, Row(1, 1e-6f, 0, 0, 1, c)), 31000);
    EXPECT_EQ(SampleRowAlone(fn, x, Row(1, 1, 0, 1, 1, c)), 31000);
    EXPECT_EQ(SampleRowAlone(fn, x, Row(1e6f, 1, 0, 1, 1, c)), 31000);
    EXPECT_EQ(SampleRowAlone(fn, x, Row(1e6f, 1e-6f, 0, 0, 1, c)), 31000);
    const int32_t tied = SampleRowAlone(fn, x, Row(1, 1, 1, 0, 1, c));
    const int32_t cold = SampleRowAlone(fn, x, Row(1e-4f, 1, 0, 0, 1, c));
    for (const int32_t t : {tied, cold}) {
      EXPECT_TRUE(t == 31000 || t == 31001) << t;  // min_p 1 and a cold temperature keep both of the tied
    }
  }
}

// A draw is u in the cumulative distribution, taken in id order: the exact distribution names the token, but for draws
// that fall within rounding of a boundary.
TEST_P(Sample, DrawInvertsTheExactDistribution) {
  const auto fn = Get<SampleFn>(OpId::kSample);
  std::mt19937_64 rng(11);
  int off = 0;
  const int trials = 600;
  for (int i = 0; i < trials; ++i) {
    const int vocab = 1 + static_cast<int>(rng() % 6000);
    auto x = RandomNormal(vocab, rng(), i % 3 == 0 ? 0.01f : 4.0f);
    if (i % 5 == 0) {
      for (float& v : x) v = std::round(v);  // many ties
    }
    if (i % 7 == 0 && vocab > 1) x[1 + rng() % (vocab - 1)] = -kInf;
    const float temperatures[] = {1e-4f, 0.3f, 1.0f, 2.5f, 1e6f}, top_ps[] = {1.0f, 0.95f, 0.5f, 0.01f};
    const float min_ps[] = {0.0f, 0.0f, 0.05f, 0.7f};
    const int32_t top_ks[] = {0, 1, 40, 5999, -1};
    const float typical_ps[] = {1.0f, 1.0f, 0.9f, 0.2f}, sigmas[] = {0.0f, 0.0f, 1.0f, 2.5f};
    const float xtcs[] = {0.0f, 0.0f, 0.5f, 1.0f}, thresholds[] = {0.001f, 0.1f, 0.4f};
    std::vector<int32_t> bans;
    if (i % 4 == 0 && vocab > 2) bans = {static_cast<int32_t>(rng() % vocab), 0};
    const float temperature = temperatures[rng() % 5], top_p = top_ps[rng() % 4], min_p = min_ps[rng() % 4];
    SampleRow row = Row(temperature, top_p, min_p, top_ks[rng() % 5], rng(), i);
    if (i % 2 == 0) {
      row.typical_p = typical_ps[rng() % 4];
      row.top_n_sigma = sigmas[rng() % 4];
      row.xtc_probability = xtcs[rng() % 4];
      row.xtc_threshold = thresholds[rng() % 3];
    }
    const bool strikes = cpu::UniformDraw(row.seed, row.counter, 1) < row.xtc_probability;
    const auto p = ExactDistribution(x, row, bans, strikes);
    const double u = cpu::UniformDraw(row.seed, row.counter);
    const int32_t got = SampleRowAlone(fn, x, row, bans);
    ASSERT_GE(got, 0);
    ASSERT_LT(got, vocab);
    double before = 0;
    for (int32_t t = 0; t < got; ++t) before += p[t];
    off += !(u >= before - 1e-9 && u < before + p[got] + 1e-9);
    EXPECT_GE(u, before - 1e-3) << "trial " << i;
    EXPECT_LT(u, before + p[got] + 1e-3) << "trial " << i;
  }
  EXPECT_LE(off, trials / 50);
}

TEST_P(Sample, SameTokensAloneInABatchOnAnyThreads) {
  const auto fn = Get<SampleFn>(OpId::kSample);
  const int rows = 24, vocab = 5000;
  const auto logits = RandomNormal(rows * vocab, 8, 3.0f);
  std::vector<SampleRow> how(rows);
  std::vector<int32_t> bans, ban_start = {0};
  for (int r = 0; r < rows; ++r) {
    how[r] = Row(r % 4 == 0 ? 0.0f : 0.5f + 0.1f * r, r % 3 == 0 ? 0.9f : 1.0f, r % 5 == 0 ? 0.02f : 0.0f,
                 r % 2 == 0 ? 30 : 0, 77 + r % 2, 1000 + r);
    if (r % 6 == 0) bans.insert(bans.end(), {r, 4000 - r});
    ban_start.push_back(static_cast<int32_t>(bans.size()));
  }
  std::vector<int32_t> alone(rows);
  for (int r = 0; r < rows; ++r) {
    alone[r] = SampleRowAlone(fn, {logits.begin() + r * vocab, logits.begin() + (r + 1) * vocab}, how[r],
                              {bans.begin() + ban_start[r], bans.begin() + ban_start[r + 1]});
  }
  for (const int threads : {1, 2, 5}) {
    std::vector<int32_t> tokens(rows, -2);
    SampleParams p;
    p.logits = logits.data();
    p.tokens = tokens.data();
    p.rows = how.data();
    p.ban_ids = bans.data();
    p.ban_start = ban_start.data();
    p.logits_stride = vocab;
    p.num_rows = rows;
    p.vocab = vocab;
    fn(p, {nullptr, threads});
    EXPECT_EQ(tokens, alone) << threads;
  }
}

FASTLLM_INSTANTIATE_ARMS(Sample);

}  // namespace
}  // namespace fastllm::ops
