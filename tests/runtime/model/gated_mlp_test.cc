// The feed-forward block with linear_silu_mul, which no CPU arm has, against itself without; and who takes a product.
#include <gtest/gtest.h>

#include <cmath>
#include <span>
#include <vector>

#include "ops/contract/linear.h"
#include "runtime/device/linear_choice.h"
#include "runtime/models/base/weight_map.h"
#include "runtime/nn/mlp.h"
#include "runtime/tensor/tensors.h"

namespace fastllm::runtime {
namespace {

constexpr int32_t kHidden = 32;
int32_t g_calls = 0;  // of SiluMulProducts

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
      static_cast<float*>(p.out)[t * p.n + i] = static_cast<float>(gate / (1.0 + std::exp(-gate)) * up);
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

TEST(LinearChoice, RowsAndShapesDecide) {
  EXPECT_TRUE(IsSkinny({kSkinnyLimit, 100, 64}));
  EXPECT_FALSE(IsSkinny({kSkinnyLimit + 1, 100, 64}));
  EXPECT_FALSE(IsSkinny({1, 100, 40}));
  EXPECT_FALSE(IsDense({kSkinnyLimit, 4096, 14336}));
  for (const int32_t rows : {17, 64, 128}) EXPECT_TRUE(IsDense({rows, 4096, 14336})) << rows;
  EXPECT_FALSE(IsDense({129, 4096, 14336}));
  EXPECT_TRUE(IsDense({32, 4096, 4096}));
  EXPECT_FALSE(IsDense({33, 4096, 4096}));
  EXPECT_FALSE(IsDense({64, 6144, 4096}));
  EXPECT_FALSE(IsDense({64, 4090, 14336}));
  EXPECT_FALSE(IsDense({64, 4096, 14332}));
}

TEST(LinearChoice, CublasTakesItsFirstChoiceExceptWhereMeasured) {
  EXPECT_EQ(CublasChoice({256, 4096, 14336}), 1);
  EXPECT_EQ(CublasChoice({128, 4096, 14336}), 0);
  EXPECT_EQ(CublasChoice({8192, 6144, 4096}), 3);
  EXPECT_EQ(CublasChoice({8191, 6144, 4096}), 0);
  EXPECT_EQ(CublasChoice({256, 4096, 12288}), 0);
}

}  // namespace
}  // namespace fastllm::runtime
