// The linear op against float64, and the promise that a row's bits depend on nothing but the row.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "ops/contract/linear.h"
#include "ops/cpu/isa.h"
#include "ops/table/op_table.h"

namespace fastllm::ops {
namespace {

std::vector<float> Random(int64_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> d;
  std::vector<float> v(n);
  for (float& x : v) x = d(rng);
  return v;
}

class Linear : public ::testing::TestWithParam<CpuIsa> {
 protected:
  void SetUp() override {
    if (GetParam() > DetectCpuIsa()) return;
    OpTable table;
    RegisterCpuOps(table, GetParam());
    auto fn = table.Resolve<LinearFn>({OpId::kLinear, Device::kCpu, DType::kF32});
    ASSERT_TRUE(fn.ok()) << fn.status().ToString();
    fn_ = *fn;
  }

  std::vector<float> Run(const std::vector<float>& x, const std::vector<float>& w, const float* bias, int32_t rows,
                         int32_t n, int32_t k, int32_t threads) {
    std::vector<float> out(static_cast<size_t>(rows) * n, NAN);
    LinearParams p;
    p.out = out.data();
    p.x = x.data();
    p.weight = w.data();
    p.bias = bias;
    p.num_rows = rows;
    p.n = n;
    p.k = k;
    fn_(p, OpContext{nullptr, threads});
    return out;
  }

  LinearFn fn_ = nullptr;  // null: the machine lacks this instruction set
};

TEST_P(Linear, EqualsFloat64OverShapes) {
  if (fn_ == nullptr) return;
  for (const int32_t rows : {1, 2, 3, 4, 5, 9, 33}) {
    for (const int32_t n : {1, 3, 4, 15, 16, 17, 50}) {
      for (const int32_t k : {1, 7, 8, 16, 31, 64, 100, 577}) {
        const auto x = Random(int64_t{rows} * k, 1 + rows), w = Random(int64_t{n} * k, 2 + n), b = Random(n, 3);
        for (const bool with_bias : {false, true}) {
          const auto out = Run(x, w, with_bias ? b.data() : nullptr, rows, n, k, 2);
          for (int32_t t = 0; t < rows; ++t) {
            for (int32_t i = 0; i < n; ++i) {
              double want = with_bias ? b[i] : 0.0, size = std::abs(want);
              for (int32_t j = 0; j < k; ++j) {
                const double term = double{x[t * k + j]} * w[i * k + j];
                want += term;
                size += std::abs(term);
              }
              // k roundings of partial sums, each within half a unit in the last place of the sum of magnitudes.
              ASSERT_NEAR(out[t * n + i], want, (k + 2) * 6e-8 * size + 1e-30)
                  << rows << " rows, n " << n << ", k " << k << ", element " << t << "," << i;
            }
          }
        }
      }
    }
  }
}

TEST_P(Linear, BitsOfARowDoNotDependOnItsMatesOrThreads) {
  if (fn_ == nullptr) return;
  constexpr int32_t kRows = 133, kN = 83, kK = 193;
  const auto x = Random(int64_t{kRows} * kK, 5), w = Random(int64_t{kN} * kK, 6), b = Random(kN, 7);
  const auto all = Run(x, w, b.data(), kRows, kN, kK, 2);
  EXPECT_EQ(std::memcmp(all.data(), Run(x, w, b.data(), kRows, kN, kK, 1).data(), all.size() * 4), 0);
  for (int32_t t = 0; t < kRows; ++t) {
    const std::vector<float> row(x.begin() + t * kK, x.begin() + (t + 1) * kK);
    const auto alone = Run(row, w, b.data(), 1, kN, kK, 2);
    ASSERT_EQ(std::memcmp(alone.data(), all.data() + t * kN, kN * 4), 0) << "row " << t;
  }
}

INSTANTIATE_TEST_SUITE_P(Arms, Linear, ::testing::Values(CpuIsa::kPlain, CpuIsa::kAvx2, CpuIsa::kAvx512),
                         [](const auto& info) { return std::string(CpuIsaName(info.param)); });

}  // namespace
}  // namespace fastllm::ops
