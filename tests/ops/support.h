// What the op tests share: the arms of this machine, seeded random data, error measures.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "ops/cpu/isa.h"
#include "ops/table/op_table.h"

namespace fastllm::ops {

inline std::vector<CpuIsa> ArmsOfThisMachine() {
  std::vector<CpuIsa> arms;
  for (int i = 0; i <= static_cast<int>(DetectCpuIsa()); ++i) arms.push_back(static_cast<CpuIsa>(i));
  return arms;
}

// Parameter: the arm. Get<Fn>(op) is that arm's function.
class ArmTest : public testing::TestWithParam<CpuIsa> {
 protected:
  ArmTest() { RegisterCpuOps(table_, GetParam()); }

  template <typename Fn>
  Fn Get(OpId op, uint32_t features = 0) const {
    auto r = table_.Resolve<Fn>({op, Device::kCpu, DType::kF32, 0, features});
    EXPECT_TRUE(r.ok()) << r.status().ToString();
    return r.value();
  }

  OpTable table_;
};

inline std::string ArmName(const testing::TestParamInfo<CpuIsa>& info) { return CpuIsaName(info.param); }

#define FASTLLM_INSTANTIATE_ARMS(suite) \
  INSTANTIATE_TEST_SUITE_P(Arms, suite, testing::ValuesIn(ArmsOfThisMachine()), ArmName)

inline std::vector<float> RandomNormal(size_t n, uint64_t seed, float scale = 1.0f) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<float> d(0.0f, scale);
  std::vector<float> v(n);
  for (float& x : v) x = d(rng);
  return v;
}

// Largest |a - b| / (1 + |b|).
inline double MaxError(const std::vector<float>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double worst = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double e = std::abs(a[i] - b[i]) / (1.0 + std::abs(b[i]));
    if (!(e <= worst)) worst = e;
  }
  return worst;
}

// A linear of [n, k]: rows of NaN, infinity and denormals spoil no other. run(x): what it makes of `rows` rows, more
// than 13.
template <typename Run>
void ExpectABadRowSpoilsOnlyItself(int32_t rows, int32_t n, int32_t k, const Run& run) {
  auto x = RandomNormal(int64_t{rows} * k, 32);
  const std::vector<float> good = run(x);
  x[3 * k + 40] = std::numeric_limits<float>::quiet_NaN();
  x[13 * k + 1] = -std::numeric_limits<float>::infinity();
  for (int32_t i = 0; i < k; ++i) x[5 * k + i] = i % 2 == 0 ? 0.0f : 1e-40f;
  const std::vector<float> out = run(x);
  for (int32_t t = 0; t < rows; ++t) {
    for (int32_t i = 0; i < n; ++i) {
      const float v = out[t * n + i];
      if (t == 3 || t == 13) {
        EXPECT_FALSE(std::isfinite(v)) << t << "," << i;
      } else if (t == 5) {
        EXPECT_LT(std::abs(v), 1e-30f);
      } else {
        EXPECT_EQ(v, good[t * n + i]);
      }
    }
  }
}

}  // namespace fastllm::ops
