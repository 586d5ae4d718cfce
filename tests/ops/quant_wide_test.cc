// The quantised linear of many rows without batch_invariant, and the product of an MLP, on arms that compute these in
// bfloat16 (AMX): against float64 on the rounded x, and the promises about rows. Other arms must ignore the permission.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "quant_support.h"
#include "support.h"

namespace fastllm::ops {
namespace {

float ToBFloat(float x) {
  auto bits = std::bit_cast<uint32_t>(x);
  bits += 0x7FFF + (bits >> 16 & 1);
  return std::bit_cast<float>(bits & 0xFFFF0000u);
}

// x w^T of one row with float64, and how far rounding w's values to bfloat16 and adding in float32 may take it.
struct Product {
  double value = 0.0, error = 0.0;
};
Product Multiply(const std::vector<double>& x, const Packed& w, int32_t row) {
  Product p;
  const int32_t k = w.weight.k;
  double size = 0.0, largest = 0.0, sum = 0.0;
  for (int32_t j = 0; j < k; ++j) {
    const double v = w.values[int64_t{row} * k + j];
    p.value += x[j] * v;
    size += std::abs(x[j] * v);
    largest = std::max(largest, std::abs(v));
    sum += std::abs(x[j]);
  }
  p.error = (0x1p-9 * 1.01 + (k + 3) * 0x1p-24) * size + 0x1p-19 * largest * sum;
  return p;
}

class QuantWide : public ArmTest {
 protected:
  bool has_wide() const { return GetParam() == CpuIsa::kAmx; }

  std::vector<float> Run(const std::vector<float>& x, const std::vector<QuantWeight>& parts, const float* bias,
                         int32_t rows, bool batch_invariant = false, int32_t threads = 2) {
    QuantLinearParams p;
    p.parts = parts.data();
    p.num_parts = static_cast<int32_t>(parts.size());
    p.k = parts[0].k;
    for (const QuantWeight& w : parts) p.n += w.n;
    constexpr int kGuard = 64;
    std::vector<float> out(int64_t{rows} * p.n + kGuard, -77.0f);
    p.out = out.data();
    p.x = x.data();
    p.bias = bias;
    p.num_rows = rows;
    p.batch_invariant = batch_invariant;
    Get<QuantLinearFn>(OpId::kQuantLinear)(p, OpContext{nullptr, threads});
    for (int i = 1; i <= kGuard; ++i) EXPECT_EQ(out[out.size() - i], -77.0f) << "written past the end";
    out.resize(out.size() - kGuard);
    return out;
  }

  std::vector<float> RunMlp(const std::vector<float>& x, const Packed& gate, const Packed& up, const Packed& down,
                            const float* bias, int32_t rows, int32_t threads = 2) {
    std::vector<float> out(int64_t{rows} * down.weight.n, NAN);
    Get<QuantMlpFn>(OpId::kQuantMlp)({out.data(), x.data(), &gate.weight, &up.weight, &down.weight, bias, rows},
                                     OpContext{nullptr, threads});
    return out;
  }
};

// Tests of what only arms do that compute in bfloat16.
class BFloatArm : public QuantWide {};

// Rows that pick one value of k each show the weights as they are multiplied.
TEST_P(BFloatArm, ValuesAreThoseOfTheWeightRoundedToBFloat) {
  for (const WeightType type : kTypes) {
    const int32_t k = runtime::WeightBlockElements(type) == 256 ? 256 : 96, n = 37;
    const Packed w = MakePacked(type, n, k, 5);
    std::vector<float> x(int64_t{k} * k, 0.0f);
    for (int32_t i = 0; i < k; ++i) x[int64_t{i} * k + i] = 1.0f;
    const auto out = Run(x, {w.weight}, nullptr, k);
    const QuantTraits t = TraitsOf(w.weight.format);
    for (int32_t i = 0; i < n; ++i) {
      for (int32_t j = 0; j < k; ++j) {
        const float value = w.values[int64_t{i} * k + j], got = out[int64_t{j} * n + i];
        ASSERT_EQ(std::bit_cast<uint32_t>(got) & 0xFFFF, 0u);
        double largest = 0.0;
        for (int32_t l = j / 32 * 32; l < j / 32 * 32 + 32; ++l) {
          largest = std::max(largest, std::abs(double{w.values[int64_t{i} * k + l]}));
        }
        // Half a unit in the last of 8 places; formats with a minimum round once more before.
        const double slack = t.has_min ? 0x1p-19 * largest : 0.0;
        const int exponent = value == 0.0f ? -126 : std::ilogb(value);
        ASSERT_LE(std::abs(double{got} - value), std::ldexp(1.0, exponent - 8) + slack)
            << t.name << " " << i << "," << j << ": " << got << " for " << value;
      }
    }
  }
}

TEST_P(BFloatArm, IsNearFloat64) {
  for (const WeightType type : kTypes) {
    const int32_t k = runtime::WeightBlockElements(type) == 256 ? 512 : 160;
    for (const int32_t n : {1, 16, 33, 52, 100}) {
      const Packed w = MakePacked(type, n, k, 7 + n);
      const auto bias = RandomNormal(n, 3);
      for (const int32_t rows : {kWideRows, 16, 17, 32, 33, 50, 81}) {
        const auto x = RandomNormal(int64_t{rows} * k, 100 + rows);
        const auto out = Run(x, {w.weight}, bias.data(), rows);
        for (int32_t t = 0; t < rows; ++t) {
          std::vector<double> row(k);
          for (int32_t j = 0; j < k; ++j) row[j] = ToBFloat(x[int64_t{t} * k + j]);
          for (int32_t i = 0; i < n; ++i) {
            const Product p = Multiply(row, w, i);
            const double bound = p.error + (k + 3) * 0x1p-24 * std::abs(bias[i]);
            ASSERT_NEAR(out[int64_t{t} * n + i], p.value + bias[i], bound)
                << TraitsOf(w.weight.format).name << ", " << rows << " rows, n " << n << ", element " << t << "," << i;
          }
        }
      }
    }
  }
}

TEST_P(QuantWide, BitsOfARowDependOnlyOnTheRow) {
  constexpr int32_t kRows = 71, kK = 256;
  const Packed a = MakePacked(WeightType::kQ4_1, 83, kK, 21), b = MakePacked(WeightType::kQ8_0, 17, kK, 22),
               c = MakePacked(WeightType::kQ6_K, 40, kK, 23), d = MakePacked(WeightType::kQ5_K, 1, kK, 25);
  const std::vector<QuantWeight> parts = {a.weight, b.weight, c.weight, d.weight};
  const auto x = RandomNormal(int64_t{kRows} * kK, 24);
  const auto all = Run(x, parts, nullptr, kRows, false, 3);
  const int64_t n = static_cast<int64_t>(all.size()) / kRows;
  EXPECT_EQ(std::memcmp(all.data(), Run(x, parts, nullptr, kRows, false, 1).data(), all.size() * 4), 0);
  for (const int32_t count : {kWideRows, 16, 32, 40}) {
    for (int32_t t = 0; t + count <= kRows; t += 13) {
      const std::vector<float> some(x.begin() + t * kK, x.begin() + (t + count) * kK);
      const auto got = Run(some, parts, nullptr, count);
      ASSERT_EQ(std::memcmp(got.data(), all.data() + t * n, got.size() * 4), 0) << count << " rows from " << t;
    }
  }
}

// Fewer rows, and with batch_invariant any number: the bits of the 8-bit product.
TEST_P(QuantWide, FewRowsAndInvariantCallsKeepTheirBits) {
  constexpr int32_t kRows = 40, kK = 256;
  const Packed w = MakePacked(WeightType::kQ4_K, 50, kK, 61);
  const auto x = RandomNormal(int64_t{kRows} * kK, 62);
  const auto exact = Run(x, {w.weight}, nullptr, kRows, /*batch_invariant=*/true);
  for (const int32_t rows : {1, 5, kWideRows - 1}) {
    const auto few = Run(x, {w.weight}, nullptr, rows, /*batch_invariant=*/false);
    EXPECT_EQ(std::memcmp(few.data(), exact.data(), few.size() * 4), 0) << rows;
  }
  const auto many = Run(x, {w.weight}, nullptr, kRows, /*batch_invariant=*/false);
  EXPECT_EQ(std::memcmp(many.data(), exact.data(), many.size() * 4) != 0, has_wide());
}

TEST_P(QuantWide, ABadRowSpoilsOnlyItself) {
  constexpr int32_t kRows = 34, kN = 20, kK = 64;
  const Packed w = MakePacked(WeightType::kQ8_0, kN, kK, 31);
  auto x = RandomNormal(int64_t{kRows} * kK, 32);
  const auto good = Run(x, {w.weight}, nullptr, kRows);
  x[3 * kK + 40] = std::numeric_limits<float>::quiet_NaN();
  x[33 * kK + 1] = -std::numeric_limits<float>::infinity();
  for (int32_t i = 0; i < kK; ++i) x[5 * kK + i] = i % 2 == 0 ? 0.0f : 1e-40f;
  const auto out = Run(x, {w.weight}, nullptr, kRows);
  for (int32_t t = 0; t < kRows; ++t) {
    for (int32_t i = 0; i < kN; ++i) {
      const float v = out[t * kN + i];
      if (t == 3 || t == 33) {
        EXPECT_FALSE(std::isfinite(v)) << t << "," << i;
      } else if (t == 5) {
        EXPECT_LT(std::abs(v), 1e-30f);
      } else {
        EXPECT_EQ(v, good[t * kN + i]);
      }
    }
  }
}

TEST_P(BFloatArm, MlpIsNearFloat64) {
  constexpr int32_t kHidden = 256, kInter = 768, kN = 75;
  for (const WeightType type : kTypes) {
    const Packed gate = MakePacked(type, kInter, kHidden, 71), up = MakePacked(type, kInter, kHidden, 72),
                 down = MakePacked(WeightType::kQ8_0, kN, kInter, 73);
    const auto bias = RandomNormal(kN, 74);
    for (const int32_t rows : {1, 16, 21, 48}) {
      const auto x = RandomNormal(int64_t{rows} * kHidden, 75 + rows);
      const auto out = RunMlp(x, gate, up, down, bias.data(), rows);
      double error = 0.0, size = 0.0;
      for (int32_t t = 0; t < rows; ++t) {
        std::vector<double> row(kHidden), act(kInter), act_error(kInter);
        for (int32_t i = 0; i < kHidden; ++i) row[i] = ToBFloat(x[int64_t{t} * kHidden + i]);
        for (int32_t i = 0; i < kInter; ++i) {
          const Product g = Multiply(row, gate, i), u = Multiply(row, up, i);
          const double silu = g.value / (1.0 + std::exp(-g.value));
          act[i] = silu * u.value;
          // The slope of SiLU is at most 1.1.
          const double apart = 1.1 * g.error * (std::abs(u.value) + u.error) + std::abs(silu) * u.error;
          act_error[i] = apart + 0x1p-8 * (std::abs(act[i]) + apart);
        }
        for (int32_t i = 0; i < kN; ++i) {
          const Product p = Multiply(act, down, i);
          double bound = 1.01 * p.error + 1e-6 * std::abs(bias[i]);
          for (int32_t j = 0; j < kInter; ++j)
            bound += 1.01 * act_error[j] * std::abs(down.values[int64_t{i} * kInter + j]);
          const double apart = out[int64_t{t} * kN + i] - (p.value + bias[i]);
          ASSERT_LE(std::abs(apart), bound) << TraitsOf(gate.weight.format).name << " row " << t << " of " << rows;
          error += apart * apart;
          size += p.value * p.value;
        }
      }
      // The bound is of errors that all add up; as they are, they are a fraction of it.
      EXPECT_LE(std::sqrt(error / size), 0x1p-6) << TraitsOf(gate.weight.format).name;
    }
  }
}

TEST_P(BFloatArm, MlpRowsDoNotDependOnTheirMatesOrThreads) {
  constexpr int32_t kHidden = 64, kInter = 1536, kN = 40, kRows = 390;  // more rows than stay near at once
  const Packed gate = MakePacked(WeightType::kQ4_0, kInter, kHidden, 81),
               up = MakePacked(WeightType::kQ4_0, kInter, kHidden, 82),
               down = MakePacked(WeightType::kQ5_1, kN, kInter, 83);
  const auto x = RandomNormal(int64_t{kRows} * kHidden, 84);
  const auto all = RunMlp(x, gate, up, down, nullptr, kRows, 3);
  EXPECT_EQ(std::memcmp(all.data(), RunMlp(x, gate, up, down, nullptr, kRows, 1).data(), all.size() * 4), 0);
  for (const int32_t count : {1, 15, 33}) {
    for (int32_t t = 0; t + count <= kRows; t += 119) {
      const std::vector<float> some(x.begin() + t * kHidden, x.begin() + (t + count) * kHidden);
      const auto got = RunMlp(some, gate, up, down, nullptr, count);
      ASSERT_EQ(std::memcmp(got.data(), all.data() + int64_t{t} * kN, got.size() * 4), 0) << count << " from " << t;
    }
  }
}

TEST_P(BFloatArm, MlpRefusesSizesThatDoNotFit) {
  const Packed gate = MakePacked(WeightType::kQ8_0, 64, 64, 91), up = MakePacked(WeightType::kQ4_0, 64, 64, 92),
               down = MakePacked(WeightType::kQ8_0, 16, 32, 93);
  const std::vector<float> x(64);
  EXPECT_ANY_THROW(RunMlp(x, gate, up, down, nullptr, 1));    // formats
  EXPECT_ANY_THROW(RunMlp(x, gate, gate, down, nullptr, 1));  // sizes
}

FASTLLM_INSTANTIATE_ARMS(QuantWide);

// Of this machine: AMX, or none.
std::vector<CpuIsa> BFloatArms() {
  std::vector<CpuIsa> arms = ArmsOfThisMachine();
  std::erase_if(arms, [](CpuIsa isa) { return isa != CpuIsa::kAmx; });
  return arms;
}
INSTANTIATE_TEST_SUITE_P(Arms, BFloatArm, testing::ValuesIn(BFloatArms()), ArmName);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(BFloatArm);

}  // namespace
}  // namespace fastllm::ops
