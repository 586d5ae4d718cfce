// The feed-forward block with linear_silu_mul and with fp8_linear_silu_mul, which no CPU arm has, against itself
// without; and who takes a product.
#include <gtest/gtest.h>

#include <cmath>
#include <span>
#include <vector>

#include "ops/contract/fp8.h"
#include "ops/contract/linear.h"
#include "runtime/device/fp8_choice.h"
#include "runtime/device/linear_choice.h"
#include "runtime/device/plan_rows.h"
#include "runtime/models/base/weight_map.h"
#include "runtime/nn/mlp.h"
#include "runtime/tensor/tensors.h"

namespace fastllm::runtime {
namespace {

constexpr int32_t kHidden = 32;
int32_t g_calls = 0;  // of SiluMulProducts

double Silu(double x) { return x / (1.0 + std::exp(-x)); }

void SiluMulProducts(const ops::LinearParams& p, const ops::OpContext&) {
  ++g_calls;
  const float *x = static_cast<const float*>(p.x), *w = static_cast<const float*>(p.weight);
  for (int64_t t = 0; t < p.num_rows; ++t) {
    for (int64_t i = 0; i < p.n; ++i) {
      double gate = 0.0, up = 0.0;
      for (int64_t k = 0; k < p.k; ++k) {
        gate += double{x[t * p.k + k]} * w[i * p.k + k];
        up += double{x[t * p.k + k]} * w[(p.n + i) * p.k + k];
      }
      static_cast<float*>(p.out)[t * p.n + i] = static_cast<float>(Silu(gate) * up);
    }
  }
}

// As the contract has it, by the CPU's fp8_linear.
void Fp8SiluMulProducts(const ops::Fp8LinearParams& p, const ops::OpContext& ctx) {
  ++g_calls;
  std::vector<float> both(static_cast<size_t>(p.num_rows) * 2 * p.n);
  ops::Fp8LinearParams wide = p;
  wide.out = both.data();
  wide.n = 2 * p.n;
  (*ops::BuiltinOps().Resolve<ops::Fp8LinearFn>({ops::OpId::kFp8Linear, ops::Device::kCpu, ops::DType::kF32}))(wide,
                                                                                                               ctx);
  for (int64_t t = 0; t < p.num_rows; ++t) {
    const float* row = &both[t * 2 * p.n];
    for (int64_t i = 0; i < p.n; ++i) {
      static_cast<float*>(p.out)[t * p.n + i] = static_cast<float>(Silu(row[i]) * row[p.n + i]);
    }
  }
}

ops::OpTable TableWith(uint32_t features) {
  ops::OpTable table = ops::BuiltinOps();
  table.Register({ops::OpId::kLinearSiluMul, ops::Device::kCpu, ops::DType::kF32, 0, features, 0,
                  "cpu.linear_silu_mul.f32.test", reinterpret_cast<ops::AnyFn>(&SiluMulProducts)});
  return table;
}

std::vector<float> Run(const ops::OpTable& table, int32_t rows, int32_t intermediate) {
  ParamSet params;
  Scratch scratch;
  Builder builder(table, Placement{}, 1024, {0, 1, 1}, &params, &scratch);
  const GatedMlp mlp(builder, "mlp", kHidden, intermediate, /*bias=*/false);
  EXPECT_TRUE(builder.status().ok()) << builder.status().ToString();
  EXPECT_TRUE(FillDummyWeights(5, {Placement{}, &ops::BuiltinOps(), {}}, params).ok());
  for (const auto& p : params.all()) {
    for (float& v : std::span(DataOf<float>(p->value), p->value.numel())) v *= 20.0f;
  }
  const at::Tensor x = Empty({rows, kHidden}, at::kFloat), out = Empty({rows, kHidden}, at::kFloat);
  for (int64_t i = 0; i < x.numel(); ++i) DataOf<float>(x)[i] = std::sin(static_cast<float>(i));
  ForwardContext ctx;
  ctx.scratch = &scratch;
  mlp.Forward(ctx, x, out);
  return {DataOf<const float>(out), DataOf<const float>(out) + out.numel()};
}

void ExpectSame(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  double worst = 0.0, size = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    worst = std::max(worst, std::abs(double{a[i]} - b[i]));
    size = std::max(size, std::abs(double{b[i]}));
  }
  EXPECT_GT(size, 1e-3);
  EXPECT_LT(worst, 1e-5 * size);
}

// The rows and widths at which the block used the op, whose result is right in any case.
int32_t Calls(uint32_t features, int32_t rows, int32_t intermediate) {
  g_calls = 0;
  ExpectSame(Run(TableWith(features), rows, intermediate), Run(ops::BuiltinOps(), rows, intermediate));
  return g_calls;
}

TEST(GatedMlp, FewRowsAreGatedInTheProduct) {
  EXPECT_EQ(Calls(ops::kFeatureNone, 1, 48), 1);
  EXPECT_EQ(Calls(ops::kFeatureNone, ops::kSkinnyRows, 48), 1);
  EXPECT_EQ(Calls(ops::kFeatureNone, ops::kSkinnyRows + 1, 48), 0);
}

TEST(GatedMlp, ManyRowsAreWhereTheOpTakesThem) {
  EXPECT_EQ(Calls(ops::kFeatureAnyRows, 3, 48), 1);
  EXPECT_EQ(Calls(ops::kFeatureAnyRows, 256, 48), 1);
  EXPECT_EQ(Calls(ops::kFeatureAnyRows, 257, 48), 0);  // ops::GatesRows
  EXPECT_EQ(Calls(ops::kFeatureAnyRows, 897, 48), 1);
  // A width that its tiles do not take.
  EXPECT_EQ(Calls(ops::kFeatureAnyRows, ops::kSkinnyRows, 40), 1);
  EXPECT_EQ(Calls(ops::kFeatureAnyRows, 64, 40), 0);
}

// The same with weights in 8-bit floats and the norm before it.
std::vector<float> RunFp8(const ops::OpTable& table, int32_t rows, int32_t intermediate) {
  ParamSet params;
  Scratch scratch;
  Builder builder(table, Placement{}, 1024, {0, 1, 1}, &params, &scratch, {},
                  LinearMethod{LinearKind::kFp8, "", false});
  const GatedMlp mlp(builder, "mlp", kHidden, intermediate, /*bias=*/false);
  const RmsNorm norm(builder, "norm", kHidden, 1e-5f);
  EXPECT_TRUE(builder.status().ok()) << builder.status().ToString();
  EXPECT_TRUE(FillDummyWeights(5, {Placement{}, &ops::BuiltinOps(), {}}, params).ok());
  for (const auto& p : params.all()) {
    if (!p->is_fp8) continue;
    for (float& v : std::span(DataOf<float>(p->scale), p->scale.numel())) v *= 20.0f;
  }
  const at::Tensor x = Empty({rows, kHidden}, at::kFloat), residual = Empty({rows, kHidden}, at::kFloat),
                   out = Empty({rows, kHidden}, at::kFloat);
  for (int64_t i = 0; i < x.numel(); ++i) DataOf<float>(residual)[i] = std::sin(static_cast<float>(i));
  ForwardContext ctx;
  ctx.scratch = &scratch;
  mlp.Forward(ctx, {norm, x, residual, /*add=*/false}, out);
  return {DataOf<const float>(out), DataOf<const float>(out) + out.numel()};
}

int32_t Fp8Calls(int32_t rows, int32_t intermediate) {
  ops::OpTable table = ops::BuiltinOps();
  table.Register({ops::OpId::kFp8LinearSiluMul, ops::Device::kCpu, ops::DType::kF32, 0, 0, 0,
                  "cpu.fp8_linear_silu_mul.f32.test", reinterpret_cast<ops::AnyFn>(&Fp8SiluMulProducts)});
  g_calls = 0;
  const auto got = RunFp8(table, rows, intermediate), want = RunFp8(ops::BuiltinOps(), rows, intermediate);
  double difference = 0.0, size = 0.0;
  for (size_t i = 0; i < got.size(); ++i) {
    difference += (double{got[i]} - want[i]) * (double{got[i]} - want[i]);
    size += double{want[i]} * want[i];
  }
  EXPECT_GT(size, 1e-6);
  EXPECT_LT(difference, 1e-6 * size);  // silu's last bits may round to another code
  return g_calls;
}

TEST(GatedMlp, Fp8RowsAreGatedWhereThatIsFaster) {
  EXPECT_EQ(Fp8Calls(64, 48), 0);  // ops::GatesFp8Rows
  EXPECT_EQ(Fp8Calls(65, 48), 1);
  EXPECT_EQ(Fp8Calls(256, 48), 1);
  EXPECT_EQ(Fp8Calls(257, 48), 0);
  EXPECT_EQ(Fp8Calls(65, 40), 0);  // a width that its tiles do not take
}

TEST(Fp8Choice, RowsAndShapesDecide) {
  for (const int32_t rows : {1, 64, 128}) EXPECT_EQ(ChooseFp8Kernel(rows, 4096, 14336, true), Fp8Kernel::kStream);
  EXPECT_EQ(ChooseFp8Kernel(64, 28672, 4096, true), Fp8Kernel::kStream);
  EXPECT_EQ(ChooseFp8Kernel(65, 28672, 4096, true), Fp8Kernel::kDense);
  EXPECT_EQ(ChooseFp8Kernel(65, 28672, 4096, false), Fp8Kernel::kStream);
  for (const int32_t rows : {129, 256}) {
    EXPECT_EQ(ChooseFp8Kernel(rows, 6144, 4096, true), Fp8Kernel::kDense);
    EXPECT_EQ(ChooseFp8Kernel(rows, 6144, 4096, false), Fp8Kernel::kCublas);
  }
  EXPECT_EQ(ChooseFp8Kernel(257, 6144, 4096, true), Fp8Kernel::kCublas);
}

TEST(LinearChoice, RowsAndShapesDecide) {
  EXPECT_TRUE(IsSkinny({kSkinnyLimit, 100, 64}));
  EXPECT_FALSE(IsSkinny({kSkinnyLimit + 1, 100, 64}));
  EXPECT_FALSE(IsSkinny({1, 100, 40}));
  EXPECT_FALSE(IsDense({kSkinnyLimit, 4096, 14336}));
  for (const int32_t rows : {17, 64, 128}) EXPECT_TRUE(IsDense({rows, 4096, 14336})) << rows;
  EXPECT_FALSE(IsDense({129, 4096, 14336}));
  EXPECT_TRUE(IsDense({32, 4096, 4096}));
  for (const int32_t rows : {17, 33, 64}) {
    EXPECT_TRUE(IsDense({rows, 4096, 4096}) && IsDense({rows, 6144, 4096})) << rows;
  }
  for (const int32_t rows : {16, 65}) EXPECT_FALSE(IsDense({rows, 6144, 4096})) << rows;
  EXPECT_FALSE(IsDense({65, 4096, 4096}));
  EXPECT_FALSE(IsDense({64, 128256, 4096}));
  EXPECT_FALSE(IsDense({64, 2048, 2048}));
  EXPECT_FALSE(IsDense({64, 4090, 14336}));
  EXPECT_FALSE(IsDense({64, 4096, 14332}));
}

TEST(LinearChoice, CublasTakesItsFirstChoiceExceptWhereMeasured) {
  EXPECT_EQ(ChooseCublas({256, 4096, 14336}).choice, 1);
  EXPECT_EQ(ChooseCublas({128, 4096, 14336}).choice, 0);
  EXPECT_EQ(ChooseCublas({8192, 6144, 4096}).choice, 3);
  EXPECT_EQ(ChooseCublas({8191, 6144, 4096}).choice, 0);
  EXPECT_EQ(ChooseCublas({256, 4096, 12288}).choice, 0);
  EXPECT_EQ(ChooseCublas({448, 28672, 4096}).ask, 512);
  EXPECT_EQ(ChooseCublas({481, 28672, 4096}).ask, 0);
}

// The rules are asked about in the steps that make kernels ready, which have these sizes and no others.
TEST(LinearChoice, RulesAreOfSizesThatStandForRows) {
  for (const CublasRule& r : kCublasRules) {
    EXPECT_EQ(PlanRows(r.most_rows), r.most_rows);
    EXPECT_TRUE(r.least_rows == r.most_rows || PlanRows(r.least_rows - 1) == r.least_rows - 1) << r.least_rows;
    EXPECT_TRUE(r.take.ask == 0 || (PlanRows(r.take.ask) == r.take.ask && r.take.ask >= r.most_rows)) << r.take.ask;
    EXPECT_LT(r.take.choice, 8);
  }
}

TEST(LinearChoice, NoTwoRulesAreOfTheSameRows) {
  for (const CublasRule& a : kCublasRules) {
    for (const CublasRule& b : kCublasRules) {
      if (&a == &b || a.n != b.n || a.k != b.k) continue;
      EXPECT_TRUE(a.most_rows < b.least_rows || b.most_rows < a.least_rows) << a.least_rows << " " << b.least_rows;
    }
  }
}

}  // namespace
}  // namespace fastllm::runtime
