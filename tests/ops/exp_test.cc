// The error bound that cpp/docs/ops.md states for the exponential of each arm.
#include <bit>
#include <cmath>
#include <limits>

#include "ops/cpu/kernels.h"
#include "support.h"

namespace fastllm::ops {
namespace {

using Exp = ArmTest;

const cpu::Kernels& KernelsOf(CpuIsa isa) {
#if defined(__x86_64__)
  if (isa == CpuIsa::kAvx2) return cpu::kAvx2Kernels;
  if (isa >= CpuIsa::kAvx512) return cpu::kAvx512Kernels;  // the further sets have no exponential of their own
#endif
  EXPECT_EQ(isa, CpuIsa::kPlain);
  return cpu::kPlainKernels;
}

TEST_P(Exp, WithinTwoUnitsInTheLastPlace) {
  std::vector<float> x;
  for (double v = -87.0; v < 88.7; v += 1.7e-4) x.push_back(static_cast<float>(v));
  std::vector<float> y(x.size());
  KernelsOf(GetParam()).exp_scaled(x.data(), static_cast<int64_t>(x.size()), 0.0f, 1.0f, y.data());
  double worst = 0.0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double exact = std::exp(static_cast<double>(x[i]));
    const double ulp = std::ldexp(1.0, std::ilogb(exact) - 23);
    worst = std::max(worst, std::abs(y[i] - exact) / ulp);
  }
  EXPECT_LE(worst, 2.0);
}

TEST_P(Exp, EndsOfTheRange) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {0.0f, -inf, inf, std::nanf(""), -104.5f, 89.0f, -1e30f, 1e30f, -95.0f, -0.0f};
  std::vector<float> y(x.size());
  KernelsOf(GetParam()).exp_scaled(x.data(), static_cast<int64_t>(x.size()), 0.0f, 1.0f, y.data());
  EXPECT_EQ(y[0], 1.0f);
  EXPECT_EQ(y[1], 0.0f);
  EXPECT_EQ(y[2], inf);
  EXPECT_TRUE(std::isnan(y[3]));
  EXPECT_EQ(y[4], 0.0f);
  EXPECT_EQ(y[5], inf);
  EXPECT_EQ(y[6], 0.0f);
  EXPECT_EQ(y[7], inf);
  EXPECT_NEAR(y[8], std::exp(-95.0), 3e-45);  // subnormal: within two of its units
  EXPECT_EQ(y[9], 1.0f);
}

TEST_P(Exp, SumIsTheSumOfTheWeights) {
  for (const int n : {1, 5, 16, 31, 32, 33, 1000, 1024}) {
    const auto x = RandomNormal(n, 3, 4.0f);
    double want = 0.0;
    for (const float v : x) want += std::exp((static_cast<double>(v) - 10.0) * 0.5);
    EXPECT_NEAR(KernelsOf(GetParam()).exp_sum(x.data(), n, 10.0f, 0.5f) / want, 1.0, 2e-6) << n;
  }
}

FASTLLM_INSTANTIATE_ARMS(Exp);

}  // namespace
}  // namespace fastllm::ops
