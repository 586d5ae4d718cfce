#include <cmath>
#include <cstring>
#include <limits>

#include "core/base/check.h"
#include "ops/contract/embedding.h"
#include "ops/contract/rms_norm.h"
#include "ops/contract/rope.h"
#include "ops/contract/silu_mul.h"
#include "support.h"

namespace fastllm::ops {
namespace {

constexpr int kHidden[] = {1, 7, 15, 16, 17, 64, 100, 576, 1536};

using RowOps = ArmTest;

TEST_P(RowOps, EmbeddingAndGatherRowsCopyRows) {
  const int vocab = 37, hidden = 21;
  const auto table = RandomNormal(vocab * hidden, 1);
  const std::vector<int32_t> ids = {0, 36, 5, 5, 17};
  std::vector<float> out(ids.size() * hidden), out2(out.size());
  Get<EmbeddingFn>(OpId::kEmbedding)({out.data(), table.data(), ids.data(), 5, hidden, vocab}, {nullptr, 2});
  Get<GatherRowsFn>(OpId::kGatherRows)({out2.data(), table.data(), ids.data(), 5, hidden}, {nullptr, 2});
  for (size_t t = 0; t < ids.size(); ++t) {
    for (int i = 0; i < hidden; ++i) {
      EXPECT_EQ(out[t * hidden + i], table[ids[t] * hidden + i]);
      EXPECT_EQ(out2[t * hidden + i], table[ids[t] * hidden + i]);
    }
  }
}

TEST_P(RowOps, EmbeddingRefusesIdsOutsideTheVocabulary) {
  std::vector<float> table(8), out(4);
  const auto fn = Get<EmbeddingFn>(OpId::kEmbedding);
  for (const int32_t bad : {-1, 2}) {
    EXPECT_THROW(fn({out.data(), table.data(), &bad, 1, 4, 2}, {}), InternalError);
  }
}

TEST_P(RowOps, EmbeddingOfManyTokensOnManyThreads) {
  const int vocab = 50, hidden = 576, tokens = 1000;
  const auto table = RandomNormal(vocab * hidden, 2);
  std::vector<int32_t> ids(tokens);
  for (int t = 0; t < tokens; ++t) ids[t] = t * 7 % vocab;
  std::vector<float> out(tokens * hidden);
  Get<EmbeddingFn>(OpId::kEmbedding)({out.data(), table.data(), ids.data(), tokens, hidden, vocab}, {nullptr, 4});
  for (int t = 0; t < tokens; ++t) {
    ASSERT_EQ(std::memcmp(&out[t * hidden], &table[ids[t] * hidden], hidden * sizeof(float)), 0) << t;
  }
}

// out and the new residual, in float64.
struct NormReference {
  std::vector<double> out, residual;
};

NormReference ReferenceNorm(const std::vector<float>& x, const std::vector<float>* residual,
                            const std::vector<float>& w, float eps) {
  const size_t n = w.size();
  NormReference r{std::vector<double>(x.size()), std::vector<double>(x.size())};
  for (size_t t = 0; t < x.size() / n; ++t) {
    double sum = 0;
    for (size_t i = 0; i < n; ++i) {
      r.residual[t * n + i] = x[t * n + i] + (residual != nullptr ? double{(*residual)[t * n + i]} : 0.0);
      sum += r.residual[t * n + i] * r.residual[t * n + i];
    }
    for (size_t i = 0; i < n; ++i) r.out[t * n + i] = r.residual[t * n + i] / std::sqrt(sum / n + eps) * w[i];
  }
  return r;
}

TEST_P(RowOps, RmsNorm) {
  const auto fn = Get<RmsNormFn>(OpId::kRmsNorm);
  for (const int hidden : kHidden) {
    for (const int tokens : {1, 3, 200}) {
      const auto x = RandomNormal(tokens * hidden, 3);
      const auto w = RandomNormal(hidden, 4);
      std::vector<float> out(x.size());
      fn({out.data(), x.data(), nullptr, w.data(), tokens, hidden, 1e-5f}, {nullptr, 3});
      EXPECT_LT(MaxError(out, ReferenceNorm(x, nullptr, w, 1e-5f).out), 3e-6) << hidden << " " << tokens;
    }
  }
}

TEST_P(RowOps, RmsNormAddsTheResidualAndMayWriteOverX) {
  const auto fn = Get<RmsNormFn>(OpId::kRmsNorm);
  for (const int hidden : kHidden) {
    auto x = RandomNormal(5 * hidden, 5);
    auto residual = RandomNormal(5 * hidden, 6);
    const auto w = RandomNormal(hidden, 7);
    const auto want = ReferenceNorm(x, &residual, w, 1e-3f);
    fn({x.data(), x.data(), residual.data(), w.data(), 5, hidden, 1e-3f}, {});
    EXPECT_LT(MaxError(x, want.out), 3e-6) << hidden;
    EXPECT_LT(MaxError(residual, want.residual), 1e-6) << hidden;
  }
}

TEST_P(RowOps, SiluMul) {
  const auto fn = Get<SiluMulFn>(OpId::kSiluMul);
  for (const int n : kHidden) {
    const auto x = RandomNormal(4 * 2 * n, 8, 5.0f);
    std::vector<float> out(4 * n);
    fn({out.data(), x.data(), 4, n}, {});
    std::vector<double> want(4 * n);
    for (int t = 0; t < 4; ++t) {
      for (int i = 0; i < n; ++i) {
        const double g = x[t * 2 * n + i];
        want[t * n + i] = g / (1 + std::exp(-g)) * x[t * 2 * n + n + i];
      }
    }
    EXPECT_LT(MaxError(out, want), 1e-6) << n;
  }
}

TEST_P(RowOps, SiluMulAtTheEnds) {
  std::vector<float> x(64, 1.0f), out(32);
  const float gates[] = {0.0f, -200.0f, 200.0f, -88.5f, 1e30f, -1e30f, std::numeric_limits<float>::quiet_NaN()};
  std::copy(std::begin(gates), std::end(gates), x.begin());
  Get<SiluMulFn>(OpId::kSiluMul)({out.data(), x.data(), 1, 32}, {});
  EXPECT_EQ(out[0], 0.0f);
  EXPECT_EQ(out[1], 0.0f);
  EXPECT_EQ(out[2], 200.0f);
  EXPECT_NEAR(out[3], 0.0, 1e-35);
  EXPECT_EQ(out[4], 1e30f);
  EXPECT_EQ(out[5], 0.0f);
  EXPECT_TRUE(std::isnan(out[6]));
  for (int i = 7; i < 32; ++i) EXPECT_NEAR(out[i], 0.731058578630005, 1e-7);
}

struct RopeShape {
  int head_dim, rotary_dim, q_heads, kv_heads;
};

TEST_P(RowOps, RopeRotatesPairsAndLeavesTheRest) {
  const int tokens = 70, max_position = 40;
  for (const RopeShape s : {RopeShape{64, 64, 9, 3}, {80, 32, 4, 4}, {128, 128, 2, 1}, {24, 10, 3, 1}, {6, 2, 1, 1}}) {
    for (const bool interleaved : {false, true}) {
      const int q_stride = (s.q_heads + 2 * s.kv_heads) * s.head_dim + 5;  // q and k of one fused projection
      const int half = s.rotary_dim / 2;
      auto qkv = RandomNormal(tokens * q_stride, 9);
      const auto cos_sin = RandomNormal(max_position * s.rotary_dim, 10);
      std::vector<int32_t> positions(tokens);
      for (int t = 0; t < tokens; ++t) positions[t] = t * 11 % max_position;
      std::vector<double> want(qkv.begin(), qkv.end());
      for (int t = 0; t < tokens; ++t) {
        for (int h = 0; h < s.q_heads + s.kv_heads; ++h) {
          double* x = &want[t * q_stride + h * s.head_dim];
          for (int i = 0; i < half; ++i) {
            const double c = cos_sin[positions[t] * s.rotary_dim + i];
            const double sn = cos_sin[positions[t] * s.rotary_dim + half + i];
            double& a = x[interleaved ? 2 * i : i];
            double& b = x[interleaved ? 2 * i + 1 : i + half];
            const double a0 = a, b0 = b;
            a = a0 * c - b0 * sn;
            b = b0 * c + a0 * sn;
          }
        }
      }
      RopeParams p;
      p.q = qkv.data();
      p.k = qkv.data() + s.q_heads * s.head_dim;
      p.cos_sin = cos_sin.data();
      p.positions = positions.data();
      p.q_stride = p.k_stride = q_stride;
      p.num_tokens = tokens;
      p.num_q_heads = s.q_heads;
      p.num_kv_heads = s.kv_heads;
      p.head_dim = s.head_dim;
      p.rotary_dim = s.rotary_dim;
      p.interleaved = interleaved;
      Get<RopeFn>(OpId::kRope, interleaved ? kFeatureInterleavedRope : kFeatureNone)(p, {nullptr, 2});
      EXPECT_LT(MaxError(qkv, want), 1e-6) << s.head_dim << " " << s.rotary_dim << " " << interleaved;
    }
  }
}

FASTLLM_INSTANTIATE_ARMS(RowOps);

}  // namespace
}  // namespace fastllm::ops
