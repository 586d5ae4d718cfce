// The quantised linear: packed blocks against the decoder of the weight files, and products against float64 on the very
// values that the contract names. All arms give the same bits.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "ops/contract/quant_linear.h"
#include "quant_support.h"
#include "support.h"

namespace fastllm::ops {
namespace {

// x as the contract rounds it: integers and the scale of each block.
struct Rounded {
  std::vector<int32_t> q;
  std::vector<float> scale;
};

Rounded Round(const std::vector<float>& x, int32_t group) {
  Rounded r;
  for (size_t b = 0; b < x.size(); b += group) {
    float amax = 0.0f;
    for (int i = 0; i < group; ++i) amax = std::max(amax, std::abs(x[b + i]));
    const float inverse = amax > 0.0f ? 127.0f / amax : 0.0f;
    for (int i = 0; i < group; ++i) r.q.push_back(static_cast<int32_t>(std::nearbyint(x[b + i] * inverse)));
    r.scale.push_back(amax / 127.0f);
  }
  return r;
}

class QuantLinear : public ArmTest {
 protected:
  std::vector<float> Run(const std::vector<float>& x, const std::vector<QuantWeight>& parts, const float* bias,
                         int32_t rows, int32_t threads = 2, int32_t x_group = 32) {
    QuantLinearParams p;
    p.parts = parts.data();
    p.num_parts = static_cast<int32_t>(parts.size());
    p.k = parts[0].k;
    for (const QuantWeight& w : parts) p.n += w.n;
    std::vector<float> out(int64_t{rows} * p.n, NAN);
    p.out = out.data();
    p.x = x.data();
    p.bias = bias;
    p.num_rows = rows;
    p.x_group = x_group;
    Get<QuantLinearFn>(OpId::kQuantLinear)(p, OpContext{nullptr, threads});
    return out;
  }
};

// `rows` rows against w, each element against float64.
void ExpectNear(const std::vector<float>& out, const std::vector<float>& x, const Packed& w,
                const std::vector<float>& bias, int32_t rows, int32_t group) {
  const Rounded r = Round(x, group);
  const int32_t n = w.weight.n, k = w.weight.k;
  for (int32_t t = 0; t < rows; ++t) {
    for (int32_t i = 0; i < n; ++i) {
      double want = bias[i], size = std::abs(want);
      for (int32_t j = 0; j < k; ++j) {
        const int64_t at = int64_t{t} * k + j;
        const double term = double(r.q[at]) * r.scale[at / group] * w.values[int64_t{i} * k + j];
        want += term;
        size += std::abs(term);
      }
      // Each group is three roundings, of values that the minimum may make some times larger than the sum.
      ASSERT_NEAR(out[t * n + i], want, 1e-6 * size + 1e-30)
          << TraitsOf(w.weight.format).name << ", " << rows << " rows, n " << n << ", element " << t << "," << i;
    }
  }
}

TEST_P(QuantLinear, EqualsFloat64OnTheRoundedInput) {
  for (const WeightType type : kTypes) {
    const int32_t k = runtime::WeightBlockElements(type) == 256 ? 512 : 96;
    for (const int32_t n : {1, 15, 16, 17, 50}) {
      const Packed w = MakePacked(type, n, k, 7 + n);
      const auto bias = RandomNormal(n, 3);
      for (const int32_t rows : {1, 2, 3, 5, 12, 13, 27}) {
        const auto x = RandomNormal(int64_t{rows} * k, 100 + rows);
        for (const int32_t group : {32, 16}) {
          ExpectNear(Run(x, {w.weight}, bias.data(), rows, 2, group), x, w, bias, rows, group);
        }
      }
    }
  }
}

TEST_P(QuantLinear, SameBitsAsThePlainArm) {
  OpTable plain;
  RegisterCpuOps(plain, CpuIsa::kPlain);
  const auto fn = plain.Resolve<QuantLinearFn>({OpId::kQuantLinear, Device::kCpu, DType::kF32}).value();
  for (const WeightType type : kTypes) {
    constexpr int32_t kRows = 31, kN = 45, kK = 768;
    const Packed w = MakePacked(type, kN, kK, 11);
    const auto x = RandomNormal(int64_t{kRows} * kK, 12, 3.0f);
    for (const int32_t group : {32, 16}) {
      const auto got = Run(x, {w.weight}, nullptr, kRows, 2, group);
      std::vector<float> want(got.size());
      QuantLinearParams p{want.data(), x.data(), &w.weight, nullptr, 1, kRows, kN, kK, group};
      fn(p, OpContext{});
      ASSERT_EQ(std::memcmp(got.data(), want.data(), got.size() * 4), 0) << WeightTypeName(type) << " " << group;
    }
  }
}

TEST_P(QuantLinear, BitsOfARowDoNotDependOnItsMatesOrThreads) {
  constexpr int32_t kRows = 71, kK = 256;
  const Packed a = MakePacked(WeightType::kQ4_1, 83, kK, 21), b = MakePacked(WeightType::kQ8_0, 17, kK, 22),
               c = MakePacked(WeightType::kQ6_K, 40, kK, 23);
  const std::vector<QuantWeight> parts = {a.weight, b.weight, c.weight};
  const auto x = RandomNormal(int64_t{kRows} * kK, 24);
  for (const int32_t group : {32, 16}) {
    const auto all = Run(x, parts, nullptr, kRows, 3, group);
    const int64_t n = static_cast<int64_t>(all.size()) / kRows;
    EXPECT_EQ(std::memcmp(all.data(), Run(x, parts, nullptr, kRows, 1, group).data(), all.size() * 4), 0);
    for (int32_t t = 0; t < kRows; ++t) {
      const std::vector<float> row(x.begin() + t * kK, x.begin() + (t + 1) * kK);
      ASSERT_EQ(std::memcmp(Run(row, parts, nullptr, 1, 2, group).data(), all.data() + t * n, n * 4), 0) << "row " << t;
    }
  }
}

TEST_P(QuantLinear, ABadRowSpoilsOnlyItself) {
  constexpr int32_t kRows = 14, kN = 20, kK = 64;
  for (const WeightType type : {WeightType::kQ4_1, WeightType::kQ8_0}) {
    const Packed w = MakePacked(type, kN, kK, 31);
    ExpectABadRowSpoilsOnlyItself(kRows, kN, kK, [&](const auto& x) { return Run(x, {w.weight}, nullptr, kRows); });
  }
}

TEST_P(QuantLinear, EmbeddingRowsAreTheDecodedValues) {
  for (const WeightType type : kTypes) {
    constexpr int32_t kN = 37, kK = 512;
    const Packed w = MakePacked(type, kN, kK, 41);
    const std::vector<int32_t> ids = {36, 0, 16, 15, 36};
    std::vector<float> out(ids.size() * kK);
    QuantEmbeddingParams p{out.data(), w.weight, ids.data(), static_cast<int32_t>(ids.size())};
    Get<QuantEmbeddingFn>(OpId::kQuantEmbedding)(p, OpContext{nullptr, 2});
    for (size_t t = 0; t < ids.size(); ++t) {
      for (int32_t i = 0; i < kK; ++i) ASSERT_EQ(out[t * kK + i], w.values[int64_t{ids[t]} * kK + i]);
    }
  }
}

TEST_P(QuantLinear, RefusesIdsAndPartsThatDoNotFit) {
  const Packed w = MakePacked(WeightType::kQ8_0, 16, 64, 51);
  const int32_t id = 16;
  std::vector<float> out(64);
  QuantEmbeddingParams p{out.data(), w.weight, &id, 1};
  EXPECT_ANY_THROW(Get<QuantEmbeddingFn>(OpId::kQuantEmbedding)(p, OpContext{}));
  std::vector<float> x(32);
  QuantLinearParams q{out.data(), x.data(), &w.weight, nullptr, 1, 1, 16, 32};
  EXPECT_ANY_THROW(Get<QuantLinearFn>(OpId::kQuantLinear)(q, OpContext{}));
}

FASTLLM_INSTANTIATE_ARMS(QuantLinear);

}  // namespace
}  // namespace fastllm::ops
