// Models over several ranks: the same logits and tokens as one rank, each rank with its share of the weights.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "ops/table/op_table.h"
#include "runtime/comm/memory_hub.h"
#include "runtime/models/base/registry.h"
#include "runtime/models/base/weight_map.h"
#include "runtime/runner/make_runner.h"
#include "runtime/runner/model_share.h"
#include "runtime/runner/rank_team.h"
#include "tests/runtime/model/tiny_model.h"

namespace fastllm::runtime {
namespace {

using testing::MemorySource;
using testing::TinyConfig;
using testing::TinyWeights;

constexpr int32_t kBlockSize = 4;
constexpr std::chrono::seconds kLong{60};

ModelConfig Config(int32_t kv_heads, bool qwen = false) {
  ModelConfig c = TinyConfig();
  c.num_layers = 5;
  c.num_heads = 12;
  c.num_kv_heads = kv_heads;
  c.intermediate_size = 48;
  if (!qwen) return c;
  c.architecture = "Qwen3ForCausalLM";
  c.attention_bias = c.attention_out_bias = c.mlp_bias = false;
  c.qk_norm = true;
  c.tie_word_embeddings = true;
  return c;
}

std::shared_ptr<MemorySource> Weights(const ModelConfig& c) {
  std::shared_ptr<MemorySource> w = TinyWeights(c, 3);
  if (!c.qk_norm) return w;
  w->Erase("lm_head.weight");
  std::mt19937 rng(4);
  std::normal_distribution<float> normal(1.0f, 0.3f);
  for (int32_t l = 0; l < c.num_layers; ++l) {
    const std::string p = "model.layers." + std::to_string(l) + ".";
    for (const char* name : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                             "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}) {
      w->Erase(p + name + ".bias");
    }
    for (const char* name : {"q_norm", "k_norm"}) {
      std::vector<float> v(c.head_dim);
      std::ranges::generate(v, [&] { return normal(rng); });
      w->Set(p + "self_attn." + name + ".weight", {c.head_dim}, std::move(v));
    }
  }
  return w;
}

RunnerOptions Options() {
  RunnerOptions o;
  o.sched.max_model_len = 96;
  o.sched.max_num_seqs = 8;
  o.sched.max_num_batched_tokens = 128;
  o.kv.num_blocks = 60;
  o.kv.block_size = kBlockSize;
  return o;
}

std::vector<TokenId> Prompt(int32_t n) {
  std::vector<TokenId> t(n);
  for (int32_t i = 0; i < n; ++i) t[i] = (i * i * 7 + i * 13 + 5) % 61;
  return t;
}

StepPlan Plan(const std::vector<TokenId>& tokens, int32_t done, int32_t count) {
  StepPlan plan;
  plan.step_id = static_cast<uint64_t>(done) + 1;
  const auto total = static_cast<int32_t>(tokens.size());
  if (done == 0) {
    NewSequence s;
    s.id = 1;
    s.tokens = tokens;
    s.num_prompt_tokens = total;
    s.block_ids.resize(1);
    for (int32_t b = 0; b * kBlockSize < total; ++b) s.block_ids[0].push_back(1 + b * 7 % 59);
    plan.added.push_back(std::move(s));
  } else {
    plan.diffs.push_back({1, done, {{}}});
  }
  plan.rows.push_back({1, count, done + count == total});
  plan.total_tokens = count;
  return plan;
}

// Logits of all tokens, in chunks; or why not.
Result<std::vector<float>> Logits(const ModelSource& source, const ParallelSizes& sizes, bool device_runner = false) {
  FASTLLM_ASSIGN_OR_RETURN(auto hub, MemoryHub::Create(sizes, std::chrono::seconds(60)));
  RankTeam team(std::move(hub), sizes.world());
  std::vector<std::unique_ptr<StepRunner>> runners(sizes.world());
  std::vector<float> logits;
  const auto tokens = Prompt(45);
  Status status = team.Run(
      [&](int32_t rank) -> Status {
        RunnerOptions options = Options();
        options.ranks = team.hub().RanksOf(rank);
        FASTLLM_ASSIGN_OR_RETURN(runners[rank], MakeStepRunner(source, options, nullptr, device_runner));
        std::vector<float> unread;
        for (int32_t done = 0; done < 45; done += 9) {
          FASTLLM_RETURN_IF_ERROR(runners[rank]->ExecuteForLogits(
              Plan(tokens, done, 9), options.ranks.topology.gives_output() ? &logits : &unread));
        }
        EXPECT_TRUE(unread.empty() || device_runner);
        return Status::Ok();
      },
      kLong);
  const Status ended = team.Run(
      [&](int32_t rank) {
        runners[rank].reset();
        return Status::Ok();
      },
      kLong);
  EXPECT_TRUE(ended.ok());
  FASTLLM_RETURN_IF_ERROR(status);
  return logits;
}

// Largest difference relative to the largest logit.
double Difference(const std::vector<float>& a, const std::vector<float>& b) {
  double worst = 0, largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    worst = std::max(worst, std::abs(double{a[i]} - double{b[i]}));
    largest = std::max(largest, std::abs(double{a[i]}));
  }
  return worst / largest;
}

struct Case {
  int32_t tensor;
  int32_t pipeline;
  int32_t kv_heads;
  bool qwen;
};

class RankLogits : public ::testing::TestWithParam<Case> {};

TEST_P(RankLogits, EqualThoseOfOneRank) {
  const Case& p = GetParam();
  ModelSource source;
  source.config = Config(p.kv_heads, p.qwen);
  source.tensors = Weights(source.config);
  const auto one = Logits(source, {});
  const auto several = Logits(source, {p.tensor, p.pipeline});
  ASSERT_TRUE(one.ok() && several.ok()) << one.status().ToString() << several.status().ToString();
  ASSERT_EQ(one->size(), size_t{45} * 61);
  ASSERT_EQ(several->size(), one->size());
  EXPECT_LE(Difference(*one, *several), 1e-5);
  EXPECT_EQ(*Logits(source, {p.tensor, p.pipeline}), *several);  // and the same bits in every run
  if (p.tensor == 1) {
    EXPECT_EQ(*one, *several);
  }
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const int32_t tensor : {1, 2, 3, 4}) {
    for (const int32_t pipeline : {1, 2, 3}) {
      if (tensor * pipeline == 1) continue;
      for (const bool qwen : {false, true}) {
        for (const int32_t kv_heads : {12, 1}) cases.push_back({tensor, pipeline, kv_heads, qwen});
      }
    }
  }
  cases.push_back({2, 1, 2, false});  // split
  cases.push_back({4, 2, 2, true});   // each KV head on two ranks
  cases.push_back({3, 2, 3, false});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, RankLogits, ::testing::ValuesIn(Cases()), [](const auto& info) {
  const Case& c = info.param;
  return "Tp" + std::to_string(c.tensor) + "Pp" + std::to_string(c.pipeline) + "Kv" + std::to_string(c.kv_heads) +
         (c.qwen ? "Qwen3" : "Llama");
});

TEST(RanksTest, TheRunnerOfDevicesTakesTensorRanksToo) {
  ModelSource source;
  source.config = Config(12);
  source.tensors = Weights(source.config);
  const auto one = Logits(source, {});
  const auto several = Logits(source, {3}, /*device_runner=*/true);
  ASSERT_TRUE(one.ok() && several.ok()) << several.status().ToString();
  EXPECT_LE(Difference(*one, *several), 1e-5);
  EXPECT_EQ(Logits(source, {1, 2}, true).status().code(), StatusCode::kUnimplemented);
}

TEST(RanksTest, SizesThatDoNotFitAreRefusedWithTheNumbers) {
  const auto why = [](int32_t heads, int32_t kv_heads, const ParallelSizes& sizes) {
    ModelSource source;
    source.config = Config(kv_heads);
    source.config.num_heads = heads;
    source.tensors = Weights(source.config);
    return Logits(source, sizes).status().message();
  };
  EXPECT_EQ(why(9, 3, {2}), "tensor_parallel_size is 2, which does not divide the 9 attention heads of the model");
  EXPECT_EQ(why(12, 4, {3}),
            "tensor_parallel_size is 3, which neither divides the 4 KV heads of the model nor is a multiple of them");
  EXPECT_EQ(why(12, 12, {1, 6}), "pipeline_parallel_size is 6; the model has 5 layers");
  ModelSource source;
  source.config = Config(12);
  source.config.intermediate_size = 50;
  source.tensors = Weights(source.config);
  EXPECT_EQ(Logits(source, {4}).status().message(),
            "tensor_parallel_size is 4, which does not divide the 50 intermediate values of the model");
}

// Two KV heads of 12 split over 4 would be read by the wrong queries: each is on two neighbours.
TEST(RanksTest, DummyWeightsAreThoseOfOneRank) {
  for (const ParallelSizes sizes : {ParallelSizes{4, 1}, ParallelSizes{3, 2}}) {
    ModelSource source;
    source.config = Config(sizes.tensor == 4 ? 2 : 3);
    const auto one = Logits(source, {});
    const auto several = Logits(source, sizes);
    ASSERT_TRUE(one.ok() && several.ok()) << several.status().ToString();
    EXPECT_LE(Difference(*one, *several), 1e-5);
  }
}

TEST(RanksTest, LayersAreBalancedByWhatTheyCost) {
  ModelConfig c = Config(12);
  c.vocab_size = 1;
  EXPECT_EQ(BalanceLayers(c, 1), (std::vector<int32_t>{5}));
  EXPECT_EQ(BalanceLayers(c, 5), (std::vector<int32_t>{1, 1, 1, 1, 1}));
  c.num_layers = 8;
  EXPECT_EQ(BalanceLayers(c, 4), (std::vector<int32_t>{2, 2, 2, 2}));
  // A layer has 24 * (48 * 8 + 3 * 48) = 12,672 weights; a head of three layers' cost leaves the last stage fewer.
  c.vocab_size = 3 * 12672 / 24;
  EXPECT_EQ(BalanceLayers(c, 2), (std::vector<int32_t>{5, 3}));
  // More than all layers: one stays with it, the others are spread evenly, the embedding's row counted.
  c.vocab_size *= 10;
  EXPECT_EQ(BalanceLayers(c, 3), (std::vector<int32_t>{3, 4, 1}));
}

// Builds and loads the parameters of one rank; bytes read of the checkpoint, and held.
std::pair<int64_t, int64_t> LoadedBytes(const ModelConfig& config, const TensorSource& tensors,
                                        const RankTopology& topology) {
  const auto share = ShareOf(config, topology);
  EXPECT_TRUE(share.ok());
  ParamSet params;
  Scratch scratch;
  Builder builder(ops::BuiltinOps(), {}, 16, share->layers, &params, &scratch, {topology, nullptr, nullptr, nullptr});
  const ModelEntry* entry = BuiltinModels().FindArchitecture(config.architecture);
  const auto model = entry->build(config, builder);
  EXPECT_TRUE(builder.status().ok()) << builder.status().ToString();
  int64_t read = 0;
  WeightTarget target{{}, &ops::BuiltinOps(), {nullptr, 2}, false, false, share->layers};
  target.bytes_read = &read;
  const Status status = LoadWeights(tensors, entry->weights, false, target, params);
  EXPECT_TRUE(status.ok()) << status.ToString();
  return {read, ParamBytes(params, {})};
}

// What tensor ranks cut is by far the most of a model; norms and biases of row-parallel layers are on each of them.
TEST(RanksTest, ARankReadsAndHoldsItsShareAlone) {
  ModelConfig c = Config(12);
  c.hidden_size = 96;
  c.intermediate_size = 384;
  c.num_layers = 6;
  c.vocab_size = 384;
  const auto weights = TinyWeights(c, 3);
  const auto [all_read, all_held] = LoadedBytes(c, *weights, {});
  for (const ParallelSizes sizes :
       {ParallelSizes{2, 1}, ParallelSizes{3, 1}, ParallelSizes{4, 1}, ParallelSizes{4, 2}}) {
    int64_t sum = 0;
    for (int32_t rank = 0; rank < sizes.world(); ++rank) {
      const auto [read, held] = LoadedBytes(c, *weights, {sizes, rank});
      sum += read;
      if (sizes.pipeline == 1) {
        EXPECT_LE(static_cast<double>(read), 1.15 * static_cast<double>(all_read) / sizes.tensor);
        EXPECT_LE(static_cast<double>(held), 1.15 * static_cast<double>(all_held) / sizes.tensor);
      }
    }
    EXPECT_GE(sum, all_read);
    EXPECT_LE(static_cast<double>(sum), 1.15 * static_cast<double>(all_read));
  }
}

TEST(RanksTest, TensorsOfOtherStagesAreLeftAloneAndUnknownOnesAreNot) {
  ModelSource source;
  source.config = Config(12);
  const auto weights = Weights(source.config);
  weights->Set("model.layers.4.self_attn.extra.weight", {2}, {1, 2});
  source.tensors = weights;
  const Status status = Logits(source, {1, 2}).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("model.layers.4.self_attn.extra.weight"), std::string::npos) << status.ToString();
  weights->Erase("model.layers.4.self_attn.extra.weight");
  weights->Set("model.layers.5.mlp.up_proj.weight", {2}, {1, 2});  // of a layer that the model does not have
  EXPECT_EQ(Logits(source, {1, 2}).status().code(), StatusCode::kInvalidArgument);
}

// A rank whose steps have gone astray is named by the others before anything is computed.
TEST(RanksTest, ARankThatRunsAnotherStepIsNamed) {
  for (const ParallelSizes sizes : {ParallelSizes{3, 1}, ParallelSizes{1, 2}}) {
    auto hub = MemoryHub::Create(sizes, std::chrono::seconds(60));
    ASSERT_TRUE(hub.ok());
    const int32_t world = sizes.world();
    RankTeam team(std::move(hub).value(), world);
    ModelSource source;
    source.config = Config(12);
    source.tensors = Weights(source.config);
    std::vector<std::unique_ptr<StepRunner>> runners(world);
    const Status status = team.Run(
        [&](int32_t rank) -> Status {
          RunnerOptions options = Options();
          options.ranks = team.hub().RanksOf(rank);
          FASTLLM_ASSIGN_OR_RETURN(runners[rank], MakeStepRunner(source, options, nullptr));
          std::vector<TokenId> tokens = Prompt(12);
          if (rank == 1) tokens[4] ^= 1;
          PendingStep step;
          runners[rank]->Launch(Plan(tokens, 0, 12), &step);
          return step.result.status;
        },
        kLong);
    EXPECT_EQ(status.code(), StatusCode::kInternal);
    EXPECT_TRUE(status.message().starts_with("rank 1 (")) << status.message();
    EXPECT_NE(status.message().find("is about to run another step 1 than rank 0"), std::string::npos);
    ASSERT_TRUE(team.Run(
                        [&](int32_t rank) {
                          runners[rank].reset();
                          return Status::Ok();
                        },
                        kLong)
                    .ok());
  }
}

}  // namespace
}  // namespace fastllm::runtime
