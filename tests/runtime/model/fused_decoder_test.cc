// The decoder with fused products against itself without: the same weights, tokens and cache; as one rank and as two.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <numeric>
#include <span>
#include <thread>

#include "runtime/comm/memory_hub.h"
#include "runtime/models/base/dense_decoder.h"
#include "runtime/models/base/weight_map.h"
#include "runtime/tensor/tensors.h"
#include "tests/runtime/model/peer_support.h"
#include "tests/runtime/model/tiny_model.h"

namespace fastllm::runtime {
namespace {

constexpr int32_t kTokens = 11, kBlockSize = 4, kBlocks = 5;

struct Step {
  std::vector<float> logits, cache;
};

// Two prompts, of 7 and 4 tokens, in one step.
Step RunOnce(const ModelConfig& config, bool fuse, const Ranks& ranks = {}, bool cuts_sums = false) {
  const int32_t kv_heads = config.num_kv_heads / ranks.topology.sizes.tensor;
  ParamSet params;
  Scratch scratch;
  Builder builder(ops::BuiltinOps(), Placement{}, config.max_position_embeddings,
                  {0, config.num_layers, config.num_layers}, &params, &scratch, ranks);
  builder.set_fuses(fuse);
  const auto model = BuildDenseDecoder(config, builder);
  EXPECT_TRUE(builder.status().ok()) << builder.status().ToString();
  EXPECT_TRUE(FillDummyWeights(5, {Placement{}, &ops::BuiltinOps(), {}}, params).ok());
  for (const auto& p : params.all()) {
    if (p->init != ParamInit::kMatrix) continue;
    for (float& x : std::span(DataOf<float>(p->value), p->value.numel()))
      x *= 10.0f;  // so that blocks change the residual
  }
  Step step;
  const size_t one = size_t{kBlocks} * kv_heads * kBlockSize * config.head_dim;
  step.cache.assign(one * 2 * config.num_layers, 0.0f);
  std::vector<ops::KvCacheView> layers;
  for (int32_t l = 0; l < config.num_layers; ++l) {
    float* k = step.cache.data() + 2 * one * l;
    layers.push_back({k, k + one, kBlocks, kv_heads, kBlockSize, config.head_dim, ops::DType::kF32});
  }
  const std::vector<int32_t> ids = {5, 60, 2, 31, 8, 8, 17, 44, 0, 23, 9}, query_start = {0, 7, 11}, seq_len = {7, 4},
                             table = {3, 1, 2, 0};
  const std::vector<int32_t> positions = {0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3};
  std::vector<int64_t> slots;
  for (int32_t t = 0; t < kTokens; ++t) {
    slots.push_back(table[t < 7 ? positions[t] / kBlockSize : 2] * kBlockSize + positions[t] % kBlockSize);
  }
  ForwardContext ctx;
  ctx.input = {ids.data(), positions.data(), slots.data(), query_start.data(), seq_len.data(), table.data(), kTokens, 2,
               2};
  ctx.kv_layers = layers.data();
  ctx.scratch = &scratch;
  ctx.cuts_sums = cuts_sums;
  const at::Tensor& logits = model->Logits(ctx, model->Forward(ctx));
  step.logits.assign(DataOf<const float>(logits), DataOf<const float>(logits) + logits.numel());
  return step;
}

void ExpectNear(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  double norm = 0.0, worst = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    norm = std::max(norm, std::abs(double{b[i]}));
    const double e = std::abs(double{a[i]} - b[i]);
    if (!(e <= worst)) worst = e;
  }
  EXPECT_GT(norm, 0.1);
  EXPECT_LT(worst, 2e-5 * norm);
}

ModelConfig Config() {
  ModelConfig c = testing::TinyConfig();
  c.mlp_bias = false;
  c.hidden_size = 32;  // the fused products take multiples of 32, and heads of multiples of 16
  c.intermediate_size = 64;
  c.head_dim = 16;
  c.rope.rotary_dim = 16;
  return c;
}

void Compare(const ModelConfig& c, bool same_bits) {
  const Step plain = RunOnce(c, false), fused = RunOnce(c, true);
  ExpectNear(fused.logits, plain.logits);
  ExpectNear(fused.cache, plain.cache);
  // Sums in another order: equal bits would mean that the fused products did not run.
  EXPECT_EQ(fused.logits == plain.logits, same_bits);
}

TEST(FusedDecoder, EqualsThePlainDecoder) { Compare(Config(), false); }

TEST(FusedDecoder, HeadsWithNormsRotateInAnOpOfTheirOwn) {
  ModelConfig c = Config();
  c.qk_norm = true;
  Compare(c, false);
}

TEST(FusedDecoder, InterleavedRotation) {
  ModelConfig c = Config();
  c.rope.interleaved = true;
  Compare(c, false);
}

// Two ranks, whose sums go with the norms: rank 0's logits, which are all ranks'. piece_rows: in pieces of so many
// rows.
Step RunAsTwo(const ModelConfig& config, bool fuse, int64_t piece_rows = 0) {
  auto hub = MemoryHub::Create({2}, std::chrono::seconds(60));
  EXPECT_TRUE(hub.ok());
  Step steps[2];
  {
    std::vector<std::jthread> threads;
    for (int32_t r = 0; r < 2; ++r) {
      threads.emplace_back([&, r] {
        Ranks ranks = (*hub)->RanksOf(r);
        PeerOptions options = testing::PeersOnThreads(r);
        options.most_bytes = 1 << 16;  // room for a row in a block of units
        if (piece_rows > 0) {
          options.rows = kTokens;
          options.row_bytes = config.hidden_size * static_cast<int64_t>(sizeof(float));
          options.least_cut_rows = 2;
          options.piece_rows = piece_rows;
        }
        auto made = MakePeerCommunicator(*ranks.tensor, ranks.tensor, options);
        ASSERT_TRUE(made.ok()) << made.status().ToString();
        ranks.tensor = *made;
        EXPECT_TRUE(ranks.tensor->HasSumNorm(kTokens, config.hidden_size, CommType::kF32));
        steps[r] = RunOnce(config, fuse, ranks, piece_rows > 0);
      });
    }
  }
  EXPECT_EQ(steps[0].logits, steps[1].logits);
  return steps[0];
}

TEST(FusedDecoder, RanksFuseWhatIsBetweenTheirSums) {
  for (const bool qk_norm : {false, true}) {
    ModelConfig c = Config();
    c.qk_norm = qk_norm;
    const Step one = RunOnce(c, false), plain = RunAsTwo(c, false), fused = RunAsTwo(c, true);
    ExpectNear(plain.logits, one.logits);
    ExpectNear(fused.logits, one.logits);
    ExpectNear(fused.cache, plain.cache);
    // Sums in another order, as above; heads with norms are not for the op.
    EXPECT_EQ(fused.logits == plain.logits, qk_norm);
  }
}

// Whatever the pieces, and with blocks that share an op between their sums.
TEST(FusedDecoder, SumsInPiecesHaveTheBitsOfWholeOnes) {
  ModelConfig c = Config();
  for (const bool fuse : {false, true}) {
    const Step whole = RunAsTwo(c, fuse);
    for (const int64_t piece_rows : {1, 4, 7, 10}) {
      testing::num_pieces = 0;
      const Step cut = RunAsTwo(c, fuse, piece_rows);
      EXPECT_EQ(testing::num_pieces, 2 * 2 * 2 * c.num_layers);  // ranks, pieces, sums of a layer
      EXPECT_EQ(cut.logits, whole.logits) << piece_rows;
      EXPECT_EQ(cut.cache, whole.cache) << piece_rows;
    }
  }
}

TEST(FusedDecoder, BiasOfTheMlpIsNotFused) { Compare(testing::TinyConfig(), true); }

}  // namespace
}  // namespace fastllm::runtime
