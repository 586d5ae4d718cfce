// The decoder whose last layer leaves out rows that nobody wants, attention being for all (as where it has a plan),
// against itself without.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "runtime/models/base/dense_decoder.h"
#include "runtime/models/base/weight_map.h"
#include "runtime/tensor/tensors.h"
#include "tests/runtime/model/tiny_model.h"

namespace fastllm::runtime {
namespace {

constexpr int32_t kBlockSize = 16;
struct Step {
  std::vector<float> hidden, cache;
};

// The last hidden states of one prompt: all, or those of `wanted`.
Step RunPrompt(int32_t tokens, const std::vector<int32_t>* wanted = nullptr, bool fuses = false) {
  const ModelConfig config = testing::TinyConfig();
  ParamSet params;
  Scratch scratch;
  Builder builder(ops::BuiltinOps(), Placement{}, config.max_position_embeddings,
                  {0, config.num_layers, config.num_layers}, &params, &scratch);
  builder.set_fuses(fuses);
  const auto model = BuildDenseDecoder(config, builder);
  EXPECT_TRUE(builder.status().ok()) << builder.status().ToString();
  EXPECT_TRUE(FillDummyWeights(5, {Placement{}, &ops::BuiltinOps(), {}}, params).ok());
  for (const auto& p : params.all()) {
    if (p->init != ParamInit::kMatrix) continue;
    for (float& x : std::span(DataOf<float>(p->value), p->value.numel())) x *= 10.0f;
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

// The wanted rows are those of a step that computes all, and the cache has the keys and values of all.
void CompareWanted(int32_t tokens, const std::vector<int32_t>& wanted, bool fuses) {
  const Step all = RunPrompt(tokens, nullptr, fuses), some = RunPrompt(tokens, &wanted, fuses);
  std::vector<float> rows;
  const int32_t hidden = testing::TinyConfig().hidden_size;
  for (const int32_t row : wanted) {
    rows.insert(rows.end(), all.hidden.begin() + row * hidden, all.hidden.begin() + (row + 1) * hidden);
  }
  ExpectNear(some.hidden, rows);
  ExpectNear(some.cache, all.cache);
}

TEST(WantedRows, AreThoseOfAStepThatComputesAll) {
  for (const bool fuses : {false, true}) {
    CompareWanted(20, {19}, fuses);
    CompareWanted(20, {0, 7, 8, 19}, fuses);
  }
}

TEST(WantedRows, NoneLeaveTheCacheWhole) {
  const std::vector<int32_t> none;
  const Step all = RunPrompt(20), some = RunPrompt(20, &none);
  EXPECT_EQ(some.cache, all.cache);
}

}  // namespace
}  // namespace fastllm::runtime
