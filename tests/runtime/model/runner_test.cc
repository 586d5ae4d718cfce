// The runner and the local executor on a tiny model, against the float64 reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <limits>

#include "runtime/executor/local_executor.h"
#include "runtime/models/base/weight_map.h"
#include "runtime/runner/model_runner.h"
#include "runtime/tensor/tensors.h"
#include "tests/runtime/model/runner_support.h"

namespace fastllm::runtime {
namespace {

using testing::AddRow;
using testing::kBlockSize;
using testing::MemorySource;
using testing::Prompt;
using testing::ReferenceModel;
using testing::Sequence;
using testing::TinyConfig;
using testing::TinyOptions;
using testing::TinySource;
using testing::TinyWeights;

std::unique_ptr<ModelRunner> Runner() {
  auto r = ModelRunner::Create(TinySource(), TinyOptions(), nullptr);
  EXPECT_TRUE(r.ok()) << r.status().ToString();
  return std::move(r).value();
}

std::vector<float> RunChunks(ModelRunner& runner, RequestId id, const std::vector<TokenId>& tokens, int32_t chunk) {
  std::vector<float> logits;
  const auto total = static_cast<int32_t>(tokens.size());
  for (int32_t done = 0; done < total; done += chunk) {
    StepPlan plan;
    const int32_t count = std::min(chunk, total - done);
    if (done == 0) {
      plan.added.push_back(Sequence(id, tokens, total));
    } else {
      plan.diffs.push_back({id, done, {{}}});
    }
    AddRow(plan, id, count, done + count == total);
    const Status status = runner.ExecuteForLogits(plan, &logits);
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
  return logits;
}

double MaxError(const std::vector<float>& got, const std::vector<std::vector<double>>& want) {
  double worst = 0;
  for (size_t t = 0; t < want.size(); ++t) {
    for (size_t i = 0; i < want[t].size(); ++i) {
      worst = std::max(worst, std::abs(got[t * want[t].size() + i] - want[t][i]));
    }
  }
  return worst;
}

class Chunks : public ::testing::TestWithParam<int32_t> {};

TEST_P(Chunks, LogitsEqualTheReferenceAtEveryPosition) {
  const ModelConfig config = TinyConfig();
  const auto weights = TinyWeights(config, 3);
  const auto tokens = Prompt(45, 1);
  const auto runner = Runner();
  const std::vector<float> logits = RunChunks(*runner, 5, tokens, GetParam());
  ASSERT_EQ(logits.size(), tokens.size() * config.vocab_size);
  EXPECT_LE(MaxError(logits, ReferenceModel(config, *weights).Logits(tokens)), 1e-4);
}

INSTANTIATE_TEST_SUITE_P(Sizes, Chunks, ::testing::Values(1, 7, 16, 64));

int32_t Argmax(const std::vector<double>& v) {
  return static_cast<int32_t>(std::max_element(v.begin(), v.end()) - v.begin());
}

// What greedy decoding must give, from the reference alone.
std::vector<TokenId> ReferenceGreedy(std::vector<TokenId> tokens, int32_t steps) {
  const ModelConfig config = TinyConfig();
  const auto weights = TinyWeights(config, 3);
  const ReferenceModel reference(config, *weights);
  std::vector<TokenId> out;
  for (int32_t i = 0; i < steps; ++i) {
    out.push_back(Argmax(reference.Logits(tokens).back()));
    tokens.push_back(out.back());
  }
  return out;
}

// A row whose logits are NaN gives -1 and goes on; its batch mate's tokens are the reference's.
TEST(RunnerTest, UnusableLogitsConcernTheirOwnRowAlone) {
  constexpr TokenId kPoison = 60;
  auto weights = TinyWeights(TinyConfig(), 3);
  const TensorInfo embedding = *weights->Find("model.embed_tokens.weight");
  std::vector<float> values(embedding.numel());
  DequantizeRows(embedding, 0, embedding.shape[0], values.data());
  const int64_t hidden = embedding.shape[1];
  std::fill_n(values.begin() + kPoison * hidden, hidden, std::numeric_limits<float>::quiet_NaN());
  weights->Set("model.embed_tokens.weight", embedding.shape, std::move(values));
  ModelSource source;
  source.config = TinyConfig();
  source.tensors = std::move(weights);
  auto runner = ModelRunner::Create(std::move(source), TinyOptions(), nullptr);
  ASSERT_TRUE(runner.ok()) << runner.status().ToString();

  std::vector<TokenId> poisoned = Prompt(9, 1), healthy = Prompt(14, 2), out;
  std::replace(healthy.begin(), healthy.end(), kPoison, 1);
  poisoned[4] = kPoison;
  for (int32_t step = 0; step < 4; ++step) {
    StepPlan plan;
    plan.step_id = step;
    if (step == 0) {
      plan.added = {Sequence(1, poisoned, 40), Sequence(2, healthy, 40)};
    } else {
      plan.diffs = {{1, 8 + step, {{}}}, {2, 13 + step, {{}}}};
    }
    AddRow(plan, 1, step == 0 ? 9 : 1, true);
    AddRow(plan, 2, step == 0 ? 14 : 1, true);
    const StepResult result = (*runner)->Execute(plan);
    ASSERT_TRUE(result.status.ok()) << result.status.ToString();
    EXPECT_EQ(result.rows.at(0).tokens, (std::vector<TokenId>{-1}));
    out.push_back(result.rows.at(1).tokens.at(0));
  }
  const std::vector<TokenId> want = ReferenceGreedy(healthy, 4);
  ASSERT_EQ(std::count(want.begin(), want.end(), kPoison), 0);
  EXPECT_EQ(out, want);
}

TEST(RunnerTest, MixedStepsDecodeEachSequenceAsItsReference) {
  const auto runner = Runner();
  const auto a = Prompt(9, 1), b = Prompt(14, 2);
  std::vector<TokenId> out_a, out_b;
  // Step 0: a prefills. Step 1: a decodes, b prefills 6 tokens. Step 2: a decodes, b ends its prompt. Then both decode.
  for (int32_t step = 0; step < 8; ++step) {
    StepPlan plan;
    plan.step_id = step;
    if (step == 0) plan.added.push_back(Sequence(1, a, 40));
    if (step > 0) plan.diffs.push_back({1, 8 + step, {{}}});
    AddRow(plan, 1, step == 0 ? 9 : 1, true);
    if (step == 1) plan.added.push_back(Sequence(2, b, 40));
    if (step > 1) plan.diffs.push_back({2, step == 2 ? 6 : 11 + step, {{}}});
    if (step > 0) AddRow(plan, 2, step == 1 ? 6 : (step == 2 ? 8 : 1), step > 1);
    const StepResult result = runner->Execute(plan);
    ASSERT_TRUE(result.status.ok()) << result.status.ToString();
    EXPECT_EQ(result.step_id, static_cast<uint64_t>(step));
    ASSERT_EQ(result.rows.size(), step > 1 ? 2u : 1u);
    EXPECT_EQ(result.rows[0].id, 1u);
    out_a.push_back(result.rows[0].tokens.at(0));
    if (step > 1) out_b.push_back(result.rows[1].tokens.at(0));
  }
  EXPECT_EQ(out_a, ReferenceGreedy(a, 8));
  EXPECT_EQ(out_b, ReferenceGreedy(b, 6));
}

TEST(RunnerTest, SequencesOfOneStepMayShareTheBlocksThatOneOfThemFills) {
  const auto runner = Runner();
  const auto first = Prompt(12, 4);
  auto second = first;
  second[10] = (second[10] + 1) % 61;  // equal in the first two blocks of 4 tokens
  StepPlan plan;
  plan.added.push_back(Sequence(1, first, 16));
  NewSequence s = Sequence(2, second, 16);
  s.num_computed_tokens = 8;
  std::copy_n(plan.added[0].block_ids[0].begin(), 2, s.block_ids[0].begin());
  plan.added.push_back(s);
  AddRow(plan, 1, 12, true);
  AddRow(plan, 2, 4, true);
  const StepResult result = runner->Execute(plan);
  ASSERT_TRUE(result.status.ok()) << result.status.ToString();
  EXPECT_EQ(result.rows[0].tokens, ReferenceGreedy(first, 1));
  EXPECT_EQ(result.rows[1].tokens, ReferenceGreedy(second, 1));
}

TEST(RunnerTest, BannedTokensCannotBePickedBeforeMinTokens) {
  const auto runner = Runner();
  const auto prompt = Prompt(9, 1);
  const TokenId best = ReferenceGreedy(prompt, 1)[0];
  StepPlan plan;
  plan.added.push_back(Sequence(1, prompt, 16));
  plan.added.push_back(Sequence(2, prompt, 16));
  for (NewSequence& s : plan.added) s.sampling.banned_until_min = {best};
  plan.added[0].sampling.min_tokens = 1;
  AddRow(plan, 1, 9, true);
  AddRow(plan, 2, 9, true);
  const StepResult result = runner->Execute(plan);
  ASSERT_TRUE(result.status.ok()) << result.status.ToString();
  EXPECT_NE(result.rows[0].tokens.at(0), best);
  EXPECT_EQ(result.rows[1].tokens.at(0), best);
}

TEST(RunnerTest, SeededTokensDoNotDependOnBatchMates) {
  const auto prompt = Prompt(9, 1);
  const auto run = [&](bool alone) {
    const auto runner = Runner();
    StepPlan plan;
    if (!alone) {
      plan.added.push_back(Sequence(7, Prompt(20, 5), 24));
      AddRow(plan, 7, 20, true);
    }
    NewSequence s = Sequence(1, prompt, 16);
    s.sampling.temperature = 1.5f;
    s.sampling.seed = 42;
    plan.added.push_back(s);
    AddRow(plan, 1, 9, true);
    return runner->Execute(plan).rows.back().tokens;
  };
  EXPECT_EQ(run(true), run(false));
}

struct BadPlan {
  const char* name;
  std::function<void(StepPlan&)> spoil;
  const char* message;
};

class BadPlans : public ::testing::TestWithParam<BadPlan> {};

TEST_P(BadPlans, GiveAStatusThatNamesTheFault) {
  auto executor = MakeLocalExecutor(TinySource(), TinyOptions(), nullptr);
  ASSERT_TRUE(executor.ok()) << executor.status().ToString();
  StepPlan plan;
  plan.step_id = 9;
  plan.added.push_back(Sequence(1, Prompt(9, 1), 16));
  AddRow(plan, 1, 9, true);
  GetParam().spoil(plan);
  (*executor)->Submit(plan);
  StepResult result;
  (*executor)->Wait(&result);
  EXPECT_EQ(result.step_id, 9u);
  EXPECT_EQ(result.status.code(), StatusCode::kInternal);
  EXPECT_NE(result.status.message().find(GetParam().message), std::string::npos) << result.status.ToString();
  EXPECT_TRUE(result.rows.empty());
}

const BadPlan kBadPlans[] = {
    {"RemoveUnknown", [](StepPlan& p) { p.removed = {4}; }, "is removed but not known"},
    {"AddTwice", [](StepPlan& p) { p.added.push_back(p.added[0]); }, "is added twice"},
    {"IdZero", [](StepPlan& p) { p.added[0].id = 0; }, "0 is never an id"},
    {"NoTokens", [](StepPlan& p) { p.added[0].tokens.clear(); }, "has 0 tokens"},
    {"TokenTooLarge", [](StepPlan& p) { p.added[0].tokens[3] = 61; }, "token id 61"},
    {"TokenNegative", [](StepPlan& p) { p.added[0].tokens[3] = -1; }, "token id -1"},
    {"BanTooLarge", [](StepPlan& p) { p.added[0].sampling.banned_until_min = {99}; }, "bans token id 99"},
    {"NullBlock", [](StepPlan& p) { p.added[0].block_ids[0][0] = 0; }, "has block 0"},
    {"BlockTooLarge", [](StepPlan& p) { p.added[0].block_ids[0][0] = 200; }, "has block 200"},
    {"TooFewBlocks", [](StepPlan& p) { p.added[0].block_ids[0].resize(2); }, "has 2 blocks"},
    {"TooManyBlocks", [](StepPlan& p) { p.added[0].block_ids[0].assign(25, 3); }, "has 25 blocks"},
    {"TwoGroups", [](StepPlan& p) { p.added[0].block_ids.resize(2); }, "2 KV groups"},
    {"AllComputed", [](StepPlan& p) { p.added[0].num_computed_tokens = 9; }, "9 computed tokens of 9"},
    {"RepeatsMoreThanOne",
     [](StepPlan& p) {
       p.added[0].num_computed_tokens = 7;
       p.added[0].repeats_last = true;
     },
     "repeats its last token and has 7 computed tokens of 9"},
    {"NoPrompt", [](StepPlan& p) { p.added[0].num_prompt_tokens = 0; }, "0 prompt tokens"},
    {"UpdateUnknown", [](StepPlan& p) { p.diffs.push_back({5, 0, {{}}}); }, "is updated but not known"},
    {"UpdateAdded", [](StepPlan& p) { p.diffs.push_back({1, 0, {{}}}); }, "is described twice"},
    {"RowUnknown", [](StepPlan& p) { p.rows[0].id = 6; }, "without being added or updated"},
    {"RowTwice", [](StepPlan& p) { p.rows.push_back(p.rows[0]); }, "is scheduled twice"},
    {"RowEmpty", [](StepPlan& p) { p.rows[0].num_tokens = 0; }, "scheduled for 0 tokens"},
    {"RowTooLong", [](StepPlan& p) { p.rows[0].num_tokens = 10; }, "scheduled for 10 tokens"},
    {"SampleTooEarly", [](StepPlan& p) { p.rows[0].num_tokens = 8; }, "samples at token 8 of 9"},
    {"NoSampleAtEnd", [](StepPlan& p) { p.rows[0].sample = false; }, "does not sample"},
    {"WrongTotal", [](StepPlan& p) { p.total_tokens = 8; }, "total_tokens is 8"},
    {"TotalTooLarge", [](StepPlan& p) { p.total_tokens = 129; }, "129 tokens; the limits are"},
};
INSTANTIATE_TEST_SUITE_P(Each, BadPlans, ::testing::ValuesIn(kBadPlans),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(ExecutorTest, TwoPlansInFlightRunInOrderAndTheSecondTakesTheTokenOfTheFirst) {
  auto executor = MakeLocalExecutor(TinySource(), TinyOptions(), nullptr);
  ASSERT_TRUE(executor.ok()) << executor.status().ToString();
  const auto prompt = Prompt(9, 1);
  StepPlan first, second;
  first.step_id = 1;
  first.added.push_back(Sequence(1, prompt, 16));
  AddRow(first, 1, 9, true);
  second.step_id = 2;
  second.diffs.push_back({1, 9, {{}}});
  AddRow(second, 1, 1, true);
  (*executor)->Submit(first);
  (*executor)->Submit(second);
  StepResult a, b, none;
  (*executor)->Wait(&a);
  (*executor)->Wait(&b);
  ASSERT_TRUE(a.status.ok() && b.status.ok()) << a.status.ToString() << b.status.ToString();
  EXPECT_EQ(a.step_id, 1u);
  EXPECT_EQ(b.step_id, 2u);
  EXPECT_EQ((std::vector<TokenId>{a.rows[0].tokens[0], b.rows[0].tokens[0]}), ReferenceGreedy(prompt, 2));
  (*executor)->Wait(&none);
  EXPECT_EQ(none.status.code(), StatusCode::kFailedPrecondition);
}

TEST(ExecutorTest, IsDestroyedWithPlansInFlight) {
  auto executor = MakeLocalExecutor(TinySource(), TinyOptions(), nullptr);
  ASSERT_TRUE(executor.ok());
  std::array<StepPlan, 2> plans;  // the executor reads them where they are
  for (int i = 0; i < 2; ++i) {
    StepPlan& plan = plans[i];
    plan.added.push_back(Sequence(i + 1, Prompt(9, i), 16));
    AddRow(plan, i + 1, 9, true);
    (*executor)->Submit(plan);
  }
  executor->reset();
  EXPECT_EQ(executor->get(), nullptr);
}

Status LoadWith(const std::function<void(MemorySource&, ModelConfig&)>& change) {
  ModelSource source;
  source.config = TinyConfig();
  auto weights = TinyWeights(source.config, 3);
  change(*weights, source.config);
  source.tensors = std::move(weights);
  return MakeLocalExecutor(std::move(source), TinyOptions(), nullptr).status();
}

TEST(LoadTest, NamesAMissingAWrongAndAnUnusedTensor) {
  const Status missing = LoadWith([](auto& w, auto&) { w.Erase("model.layers.1.mlp.up_proj.weight"); });
  EXPECT_EQ(missing.code(), StatusCode::kNotFound);
  EXPECT_NE(missing.message().find("model.layers.1.mlp.up_proj.weight"), std::string::npos);

  const Status shape = LoadWith(
      [](auto& w, auto&) { w.Set("model.layers.0.self_attn.k_proj.weight", {8, 24}, std::vector<float>(8 * 24)); });
  EXPECT_EQ(shape.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(shape.message().find("self_attn.k_proj.weight has shape [8, 24]; the config asks for [16, 24]"),
            std::string::npos)
      << shape.ToString();

  const Status unused = LoadWith([](auto&, auto& c) { c.mlp_bias = false; });
  EXPECT_EQ(unused.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(unused.message().find("mlp.gate_proj.bias"), std::string::npos) << unused.ToString();
}

TEST(LoadTest, DummyWeightsDependOnTheSeedAlone) {
  const auto draw = [](uint64_t seed, int32_t threads) {
    ParamSet params;
    const Param* matrix = params.Declare("layers.0.x.weight", {700, 300}, 512, ParamInit::kMatrix);
    EXPECT_TRUE(FillDummyWeights(seed, {{}, &ops::BuiltinOps(), {nullptr, threads}}, params).ok());
    const float* p = DataOf<const float>(matrix->value);
    return std::vector<float>(p, p + matrix->numel());
  };
  const std::vector<float> one = draw(1, 1);
  EXPECT_EQ(one, draw(1, 2));
  EXPECT_NE(one, draw(2, 1));
  double sum = 0, squares = 0;
  for (const float v : one) {
    sum += v;
    squares += double{v} * v;
  }
  // 512,000 draws of standard deviation 0.02: the mean is within 5 of its own deviations, 0.02 / sqrt(n).
  EXPECT_LT(std::abs(sum / one.size()), 5 * 0.02 / std::sqrt(one.size()));
  EXPECT_NEAR(std::sqrt(squares / one.size()), 0.02, 0.0002);
}

}  // namespace
}  // namespace fastllm::runtime
