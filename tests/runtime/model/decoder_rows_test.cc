// What the decoder leaves out where it can, against itself without: separate adds, where products add to the residual
// themselves (no CPU arm has the op), and rows of the last layer that nobody wants.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "ops/contract/fp8.h"
#include "ops/contract/linear.h"
#include "runtime/models/base/dense_decoder.h"
#include "runtime/models/base/weight_map.h"
#include "runtime/tensor/tensors.h"
#include "tests/runtime/model/tiny_model.h"

namespace fastllm::runtime {
namespace {

constexpr int32_t kBlockSize = 16;
int32_t g_added = 0;  // calls of Linear() that add

void Linear(const ops::LinearParams& p, const ops::OpContext&) {
  g_added += p.adds ? 1 : 0;
  const float *x = static_cast<const float*>(p.x), *w = static_cast<const float*>(p.weight),
              *bias = static_cast<const float*>(p.bias);
  float* out = static_cast<float*>(p.out);
  for (int64_t t = 0; t < p.num_rows; ++t) {
    for (int64_t i = 0; i < p.n; ++i) {
      double sum = (p.adds ? out[t * p.n + i] : 0.0) + (bias == nullptr ? 0.0 : bias[i]);
      for (int64_t k = 0; k < p.k; ++k) sum += double{x[t * p.k + k]} * w[i * p.k + k];
      out[t * p.n + i] = static_cast<float>(sum);
    }
  }
}

// The CPU's product, and the sum after it.
void Fp8Linear(const ops::Fp8LinearParams& p, const ops::OpContext& ctx) {
  static const auto plain =
      *ops::BuiltinOps().Resolve<ops::Fp8LinearFn>({ops::OpId::kFp8Linear, ops::Device::kCpu, ops::DType::kF32});
  if (!p.adds) return plain(p, ctx);
  ++g_added;
  std::vector<float> product(static_cast<size_t>(p.num_rows) * p.n);
  ops::Fp8LinearParams apart = p;
  apart.out = product.data();
  apart.adds = false;
  plain(apart, ctx);
  for (size_t i = 0; i < product.size(); ++i) static_cast<float*>(p.out)[i] += product[i];
}

ops::OpTable TableThatAdds() {
  ops::OpTable table = ops::BuiltinOps();
  table.Register({ops::OpId::kFp8Linear, ops::Device::kCpu, ops::DType::kF32, 0, ops::kFeatureAdds, 0,
                  "cpu.fp8_linear.f32.adds", reinterpret_cast<ops::AnyFn>(&Fp8Linear)});
  table.Register({ops::OpId::kLinear, ops::Device::kCpu, ops::DType::kF32, 0, ops::kFeatureAdds, 0,
                  "cpu.linear.f32.adds", reinterpret_cast<ops::AnyFn>(&Linear)});
  return table;
}

ModelConfig Config() {
  ModelConfig c = testing::TinyConfig();
  c.max_position_embeddings = std::max(c.max_position_embeddings, 2 * ops::kLeastAddRows);
  return c;
}

struct Step {
  std::vector<float> hidden, cache;
};

// The last hidden states of one prompt: all, or those of `wanted`.
Step RunPrompt(const ops::OpTable& table, int32_t tokens, const std::vector<int32_t>* wanted = nullptr,
               bool fuses = false, LinearKind kind = LinearKind::kPlain) {
  const ModelConfig config = Config();
  ParamSet params;
  Scratch scratch;
  Builder builder(table, Placement{}, config.max_position_embeddings, {0, config.num_layers, config.num_layers},
                  &params, &scratch, {}, LinearMethod{kind, {}, false});
  builder.set_fuses(fuses);
  const auto model = BuildDenseDecoder(config, builder);
  EXPECT_TRUE(builder.status().ok()) << builder.status().ToString();
  EXPECT_TRUE(FillDummyWeights(5, {Placement{}, &ops::BuiltinOps(), {}}, params).ok());
  for (const auto& p : params.all()) {
    if (p->init != ParamInit::kMatrix) continue;
    const at::Tensor& scaled = p->is_fp8 ? p->scale : p->value;
    for (float& x : std::span(DataOf<float>(scaled), scaled.numel())) x *= 10.0f;
  }
  const int32_t blocks = (tokens + kBlockSize - 1) / kBlockSize;
  const size_t one = size_t{1} * blocks * config.num_kv_heads * kBlockSize * config.head_dim;
  Step step;
  step.cache.resize(one * 2 * config.num_layers);
  std::vector<ops::KvCacheView> layers;
  for (int32_t l = 0; l < config.num_layers; ++l) {
    float* k = step.cache.data() + 2 * one * l;
    layers.push_back({k, k + one, blocks, config.num_kv_heads, kBlockSize, config.head_dim, ops::DType::kF32});
  }
  std::vector<int32_t> ids(tokens), positions(tokens), block_table(blocks);
  std::vector<int64_t> slots(tokens);
  for (int32_t t = 0; t < tokens; ++t) ids[t] = t * 7 % 50, positions[t] = t, slots[t] = t;
  for (int32_t b = 0; b < blocks; ++b) block_table[b] = b;
  const std::vector<int32_t> query_start = {0, tokens}, seq_len = {tokens};
  ForwardContext ctx;
  ctx.input = {ids.data(),     positions.data(),   slots.data(), query_start.data(),
               seq_len.data(), block_table.data(), tokens,       1,
               blocks};
  if (wanted != nullptr) {
    static const int32_t kNone = 0;
    ctx.wanted = {wanted->empty() ? &kNone : wanted->data(), nullptr, static_cast<int32_t>(wanted->size())};
  }
  ctx.kv_layers = layers.data();
  ctx.scratch = &scratch;
  const at::Tensor& hidden = model->Forward(ctx);
  EXPECT_EQ(hidden.size(0), wanted == nullptr ? tokens : static_cast<int64_t>(wanted->size()));
  step.hidden.assign(DataOf<const float>(hidden), DataOf<const float>(hidden) + hidden.numel());
  return step;
}

void ExpectNear(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  double worst = 0.0, size = 0.0;
  for (size_t i = 0; i < b.size(); ++i) {
    worst = std::max(worst, std::abs(double{a[i]} - b[i]));
    size = std::max(size, std::abs(double{b[i]}));
  }
  EXPECT_GT(size, 0.1);
  EXPECT_LT(worst, 2e-5 * size);
}

// How often the decoder used the op, whose result is right in any case.
int32_t Added(int32_t tokens, LinearKind kind = LinearKind::kPlain) {
  g_added = 0;
  ExpectNear(RunPrompt(TableThatAdds(), tokens, nullptr, false, kind).hidden,
             RunPrompt(ops::BuiltinOps(), tokens, nullptr, false, kind).hidden);
  return g_added;
}

TEST(AddingDecoder, ManyRowsAreAddedByBothProductsOfALayer) {
  EXPECT_EQ(Added(ops::kLeastAddRows), 2 * Config().num_layers);
  EXPECT_EQ(Added(ops::kLeastAddRows + 40), 2 * Config().num_layers);
}

TEST(AddingDecoder, ManyRowsOfEightBitFloatsToo) {
  EXPECT_EQ(Added(ops::kLeastAddRows, LinearKind::kFp8), 2 * Config().num_layers);
  EXPECT_EQ(Added(ops::kLeastAddRows - 1, LinearKind::kFp8), 0);
}

TEST(AddingDecoder, FewRowsAreNot) { EXPECT_EQ(Added(ops::kLeastAddRows - 1), 0); }

// The wanted rows are those of a step that computes all, and the cache has the keys and values of all.
void CompareWanted(const ops::OpTable& table, int32_t tokens, const std::vector<int32_t>& wanted, bool fuses) {
  const Step all = RunPrompt(table, tokens, nullptr, fuses), some = RunPrompt(table, tokens, &wanted, fuses);
  std::vector<float> rows;
  const int32_t hidden = Config().hidden_size;
  for (const int32_t row : wanted) {
    rows.insert(rows.end(), all.hidden.begin() + row * hidden, all.hidden.begin() + (row + 1) * hidden);
  }
  ExpectNear(some.hidden, rows);
  ExpectNear(some.cache, all.cache);
}

TEST(WantedRows, AreThoseOfAStepThatComputesAll) {
  for (const bool fuses : {false, true}) {
    CompareWanted(ops::BuiltinOps(), 20, {19}, fuses);
    CompareWanted(ops::BuiltinOps(), 20, {0, 7, 8, 19}, fuses);
  }
}

TEST(WantedRows, WhereProductsAddToTheResidual) {
  const std::vector<int32_t> two = {5, 256};
  CompareWanted(TableThatAdds(), ops::kLeastAddRows, two, false);
  g_added = 0;
  RunPrompt(TableThatAdds(), ops::kLeastAddRows, &two);
  EXPECT_EQ(g_added, 2 * (Config().num_layers - 1));  // the last layer has few rows
}

TEST(WantedRows, NoneLeaveTheCacheWhole) {
  const std::vector<int32_t> none;
  const Step all = RunPrompt(ops::BuiltinOps(), 20), some = RunPrompt(ops::BuiltinOps(), 20, &none);
  EXPECT_EQ(some.cache, all.cache);
}

}  // namespace
}  // namespace fastllm::runtime
