// quant_mlp_exact: the bits of quant_linear, silu_mul and quant_linear one after the other, on the arms that have it.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "ops/contract/silu_mul.h"
#include "quant_support.h"
#include "support.h"

namespace fastllm::ops {
namespace {

struct Mlp {
  Packed gate, up, down;
};

Mlp MakeMlp(WeightType type, WeightType down, int32_t hidden, int32_t inter, int32_t n) {
  return {MakePacked(type, inter, hidden, 71), MakePacked(type, inter, hidden, 72), MakePacked(down, n, inter, 73)};
}

class QuantMlpExact : public ArmTest {
 protected:
  std::vector<float> Run(const std::vector<float>& x, const Mlp& m, const float* bias, int32_t rows,
                         int32_t threads = 2) {
    constexpr int kGuard = 64;
    const int64_t size = int64_t{rows} * m.down.weight.n;
    std::vector<float> out(size + kGuard, -77.0f);
    Get<QuantMlpFn>(OpId::kQuantMlpExact)(
        {out.data(), x.data(), &m.gate.weight, &m.up.weight, &m.down.weight, bias, rows}, OpContext{nullptr, threads});
    for (int i = 0; i < kGuard; ++i) EXPECT_EQ(out[size + i], -77.0f) << "written past the end";
    out.resize(size);
    return out;
  }

  void Linear(std::vector<float>& out, const std::vector<float>& x, const std::vector<QuantWeight>& parts,
              const float* bias, int32_t rows) {
    QuantLinearParams p;
    for (const QuantWeight& w : parts) p.n += w.n;
    out.resize(int64_t{rows} * p.n);
    p.out = out.data();
    p.x = x.data();
    p.parts = parts.data();
    p.bias = bias;
    p.num_parts = static_cast<int32_t>(parts.size());
    p.num_rows = rows;
    p.k = parts[0].k;
    Get<QuantLinearFn>(OpId::kQuantLinear)(p, OpContext{nullptr, 2});
  }

  // The three ops of this arm.
  std::vector<float> Apart(const std::vector<float>& x, const Mlp& m, const float* bias, int32_t rows) {
    const int32_t inter = m.gate.weight.n;
    std::vector<float> gate_up, act(int64_t{rows} * inter), out;
    Linear(gate_up, x, {m.gate.weight, m.up.weight}, nullptr, rows);
    Get<SiluMulFn>(OpId::kSiluMul)({act.data(), gate_up.data(), rows, inter}, OpContext{nullptr, 2});
    Linear(out, act, {m.down.weight}, bias, rows);
    return out;
  }
};

bool Same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST_P(QuantMlpExact, HasTheBitsOfTheThreeOps) {
  for (const WeightType type : kTypes) {
    const int32_t hidden = runtime::WeightBlockElements(type) == 256 ? 256 : 160;
    const int32_t inter = runtime::WeightBlockElements(type) == 256 ? 768 : 96;
    for (const WeightType down : {type, WeightType::kQ8_0}) {
      const Mlp m = MakeMlp(type, down, hidden, inter, 75);
      const auto bias = RandomNormal(75, 74);
      for (const int32_t rows : {1, 2, 3, 8, 15, 64, 71, 133}) {
        const auto x = RandomNormal(int64_t{rows} * hidden, 75 + rows, 3.0f);
        ASSERT_TRUE(Same(Run(x, m, bias.data(), rows), Apart(x, m, bias.data(), rows)))
            << WeightTypeName(type) << ", " << WeightTypeName(down) << ", " << rows << " rows";
      }
    }
  }
}

TEST_P(QuantMlpExact, RowsDoNotDependOnTheirMatesOrThreads) {
  constexpr int32_t kHidden = 64, kInter = 1536, kRows = 390;  // more rows than stay near at once
  const Mlp m = MakeMlp(WeightType::kQ4_0, WeightType::kQ5_1, kHidden, kInter, 40);
  const auto x = RandomNormal(int64_t{kRows} * kHidden, 84);
  const auto all = Run(x, m, nullptr, kRows, 3);
  EXPECT_TRUE(Same(all, Run(x, m, nullptr, kRows, 1)));
  for (const int32_t count : {1, 15, 67}) {
    for (int32_t t = 0; t + count <= kRows; t += 119) {
      const std::vector<float> some(x.begin() + t * kHidden, x.begin() + (t + count) * kHidden);
      const auto got = Run(some, m, nullptr, count);
      ASSERT_EQ(std::memcmp(got.data(), all.data() + int64_t{t} * 40, got.size() * 4), 0) << count << " from " << t;
    }
  }
}

TEST_P(QuantMlpExact, ABadRowSpoilsOnlyItself) {
  constexpr int32_t kRows = 11, kHidden = 64;
  const Mlp m = MakeMlp(WeightType::kQ8_0, WeightType::kQ8_0, kHidden, 64, 20);
  auto x = RandomNormal(int64_t{kRows} * kHidden, 32);
  const auto good = Run(x, m, nullptr, kRows);
  x[3 * kHidden + 40] = std::numeric_limits<float>::quiet_NaN();
  x[10 * kHidden + 1] = -std::numeric_limits<float>::infinity();
  const auto out = Run(x, m, nullptr, kRows);
  for (int32_t t = 0; t < kRows; ++t) {
    for (int32_t i = 0; i < 20; ++i) {
      if (t == 3 || t == 10) {
        EXPECT_FALSE(std::isfinite(out[t * 20 + i])) << t << "," << i;
      } else {
        EXPECT_EQ(out[t * 20 + i], good[t * 20 + i]);
      }
    }
  }
}

TEST_P(QuantMlpExact, TheOutputMayBeTheInput) {
  const Mlp m = MakeMlp(WeightType::kQ4_1, WeightType::kQ4_1, 96, 64, 96);
  auto x = RandomNormal(17 * 96, 5);
  const auto want = Run(x, m, nullptr, 17);
  Get<QuantMlpFn>(OpId::kQuantMlpExact)({x.data(), x.data(), &m.gate.weight, &m.up.weight, &m.down.weight, nullptr, 17},
                                        OpContext{nullptr, 2});
  EXPECT_TRUE(Same(x, want));
}

TEST_P(QuantMlpExact, RefusesSizesThatDoNotFit) {
  Mlp m = MakeMlp(WeightType::kQ8_0, WeightType::kQ8_0, 64, 64, 16);
  const std::vector<float> x(64);
  m.up = MakePacked(WeightType::kQ4_0, 64, 64, 92);
  EXPECT_ANY_THROW(Run(x, m, nullptr, 1));  // formats
  m = MakeMlp(WeightType::kQ8_0, WeightType::kQ8_0, 64, 64, 16);
  m.down = MakePacked(WeightType::kQ8_0, 16, 32, 93);
  EXPECT_ANY_THROW(Run(x, m, nullptr, 1));  // sizes
}

TEST(QuantMlpExactArms, AreThoseWithVnniAndWithoutTiles) {
  for (const CpuIsa isa : ArmsOfThisMachine()) {
    OpTable table;
    RegisterCpuOps(table, isa);
    const bool has = table.Find({OpId::kQuantMlpExact, Device::kCpu, DType::kF32}).ok();
    EXPECT_EQ(has, isa == CpuIsa::kAvx512Vnni || isa == CpuIsa::kAvx512Bf16) << CpuIsaName(isa);
  }
}

std::vector<CpuIsa> ExactArms() {
  std::vector<CpuIsa> arms = ArmsOfThisMachine();
  std::erase_if(arms, [](CpuIsa isa) { return isa != CpuIsa::kAvx512Vnni && isa != CpuIsa::kAvx512Bf16; });
  return arms;
}
INSTANTIATE_TEST_SUITE_P(Arms, QuantMlpExact, testing::ValuesIn(ExactArms()), ArmName);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(QuantMlpExact);

}  // namespace
}  // namespace fastllm::ops
