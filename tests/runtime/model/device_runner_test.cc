// The device's runner with the CPU as its device: what is staged, fed forward and read back late gives the tokens and
// logits of the float64 reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "runtime/runner/decode_graphs.h"
#include "runtime/runner/device_runner.h"
#include "tests/runtime/model/tiny_model.h"

namespace fastllm::runtime {
namespace {

using testing::ReferenceModel;
using testing::TinyConfig;
using testing::TinyWeights;

constexpr int32_t kBlockSize = 4;

RunnerOptions Options(bool eager) {
  RunnerOptions o;
  o.sched.max_model_len = 96;
  o.sched.max_num_seqs = 8;
  o.sched.max_num_batched_tokens = 128;
  o.kv.num_blocks = 200;
  o.kv.block_size = kBlockSize;
  o.num_threads = 2;
  o.enforce_eager = eager;
  return o;
}

ModelSource Source() {
  ModelSource s;
  s.config = TinyConfig();
  s.tensors = TinyWeights(s.config, 3);
  return s;
}

std::unique_ptr<DeviceRunner> Runner(bool eager = false) {
  auto r = DeviceRunner::Create(Source(), Options(eager), nullptr);
  EXPECT_TRUE(r.ok()) << r.status().ToString();
  return std::move(r).value();
}

StepResult Step(DeviceRunner& runner, const StepPlan& plan) {
  PendingStep step;
  runner.Launch(plan, &step);
  step.Finish();
  return step.result;
}

std::vector<TokenId> Prompt(int32_t n, int32_t salt) {
  std::vector<TokenId> t(n);
  for (int32_t i = 0; i < n; ++i) t[i] = (i * i * 7 + i * 13 + salt * 29) % 61;
  return t;
}

// Blocks scattered over the pool, so that a table read wrongly shows.
NewSequence Sequence(RequestId id, std::vector<TokenId> tokens, int32_t total) {
  NewSequence s;
  s.id = id;
  s.num_prompt_tokens = static_cast<int32_t>(tokens.size());
  s.tokens = std::move(tokens);
  s.block_ids.resize(1);
  for (int32_t b = 0; b * kBlockSize < total; ++b) {
    s.block_ids[0].push_back(1 + (static_cast<int32_t>(id) + b * 8) % 199);
  }
  return s;
}

void AddRow(StepPlan& plan, RequestId id, int32_t count, bool sample) {
  plan.rows.push_back({id, count, sample});
  plan.total_tokens += count;
}

std::vector<TokenId> ReferenceGreedy(std::vector<TokenId> tokens, int32_t steps) {
  const ModelConfig config = TinyConfig();
  const auto weights = TinyWeights(config, 3);
  const ReferenceModel model(config, *weights);
  std::vector<TokenId> out;
  for (int32_t i = 0; i < steps; ++i) {
    const auto last = model.Logits(tokens).back();
    out.push_back(static_cast<TokenId>(std::max_element(last.begin(), last.end()) - last.begin()));
    tokens.push_back(out.back());
  }
  return out;
}

TEST(DeviceRunner, LogitsEqualTheReferenceAtEveryPosition) {
  const ModelConfig config = TinyConfig();
  const auto weights = TinyWeights(config, 3);
  const auto tokens = Prompt(45, 1);
  const auto want = ReferenceModel(config, *weights).Logits(tokens);
  for (const int32_t chunk : {7, 45}) {
    const auto runner = Runner();
    std::vector<float> got;
    for (int32_t done = 0; done < 45; done += chunk) {
      StepPlan plan;
      const int32_t count = std::min(chunk, 45 - done);
      if (done == 0) {
        plan.added.push_back(Sequence(5, tokens, 45));
      } else {
        plan.diffs.push_back({5, done, {{}}});
      }
      AddRow(plan, 5, count, done + count == 45);
      const Status status = runner->ExecuteForLogits(plan, &got);
      ASSERT_TRUE(status.ok()) << status.ToString();
    }
    ASSERT_EQ(got.size(), want.size() * config.vocab_size);
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(got[i], want[i / config.vocab_size][i % config.vocab_size], 1e-4) << "chunk " << chunk;
    }
  }
}

class Decode : public ::testing::TestWithParam<bool> {};

// Five sequences (a size that is padded), each step launched before the one before is finished: the ids can only have
// come over the device's own feed.
TEST_P(Decode, TokensFeedTheNextStepWithoutTheHost) {
  constexpr int32_t kRows = 5, kSteps = 12;
  const auto runner = Runner(/*eager=*/GetParam());
  std::vector<std::vector<TokenId>> got(kRows);
  const auto take = [&](PendingStep& step) {
    step.Finish();
    const StepResult& result = step.result;
    ASSERT_TRUE(result.status.ok()) << result.status.ToString();
    ASSERT_EQ(result.rows.size(), static_cast<size_t>(kRows));
    for (int32_t r = 0; r < kRows; ++r) {
      EXPECT_EQ(result.rows[r].id, static_cast<RequestId>(r + 1));
      got[r].push_back(result.rows[r].tokens.at(0));
    }
  };
  PendingStep steps[2];  // used by turns, as the executor does
  for (int32_t i = 0; i < kSteps; ++i) {
    StepPlan plan;
    plan.step_id = i;
    for (int32_t r = 0; r < kRows; ++r) {
      const auto id = static_cast<RequestId>(r + 1);
      const int32_t length = 9 + 3 * r;
      if (i == 0) {
        plan.added.push_back(Sequence(id, Prompt(length, r), length + kSteps));
      } else {
        plan.diffs.push_back({id, length + i - 1, {{}}});
      }
      AddRow(plan, id, i == 0 ? length : 1, true);
    }
    runner->Launch(plan, &steps[i % 2]);
    if (i > 0) take(steps[(i - 1) % 2]);
  }
  take(steps[(kSteps - 1) % 2]);
  for (int32_t r = 0; r < kRows; ++r) EXPECT_EQ(got[r], ReferenceGreedy(Prompt(9 + 3 * r, r), kSteps)) << r;
}

INSTANTIATE_TEST_SUITE_P(Eager, Decode, ::testing::Bool());

TEST(DeviceRunner, RemovedSequencesGiveTheirSlotsBack) {
  const auto runner = Runner();
  const auto want = ReferenceGreedy(Prompt(6, 2), 1);
  for (RequestId id = 1; id <= 40; ++id) {  // more than there are slots
    StepPlan plan;
    if (id > 1) plan.removed.push_back(id - 1);
    plan.added.push_back(Sequence(id, Prompt(6, 2), 8));
    AddRow(plan, id, 6, true);
    const StepResult result = Step(*runner, plan);
    ASSERT_TRUE(result.status.ok()) << result.status.ToString();
    EXPECT_EQ(result.rows.at(0).tokens, want);
  }
}

TEST(DeviceRunner, BannedIdsAreNotPicked) {
  const auto runner = Runner();
  const TokenId best = ReferenceGreedy(Prompt(6, 2), 1)[0];
  StepPlan plan;
  NewSequence s = Sequence(1, Prompt(6, 2), 8);
  s.sampling.min_tokens = 1;
  s.sampling.banned_until_min = {best};
  plan.added.push_back(std::move(s));
  AddRow(plan, 1, 6, true);
  const StepResult result = Step(*runner, plan);
  ASSERT_TRUE(result.status.ok()) << result.status.ToString();
  EXPECT_NE(result.rows.at(0).tokens.at(0), best);
}

// More banned ids than a row may bring: it is sampled on the host, with the same outcome.
TEST(DeviceRunner, RowsWithLongListsAreSampledOnTheHost) {
  const auto runner = Runner();
  const TokenId best = ReferenceGreedy(Prompt(6, 2), 1)[0];
  StepPlan plan;
  for (RequestId id = 1; id <= 2; ++id) {
    NewSequence s = Sequence(id, Prompt(6, 2), 8);
    if (id == 1) {
      s.sampling.min_tokens = 1;
      s.sampling.banned_until_min.assign(20000, best);
    }
    plan.added.push_back(std::move(s));
    AddRow(plan, id, 6, true);
  }
  const StepResult result = Step(*runner, plan);
  ASSERT_TRUE(result.status.ok()) << result.status.ToString();
  EXPECT_NE(result.rows.at(0).tokens.at(0), best);
  EXPECT_EQ(result.rows.at(1).tokens.at(0), best);
  // What the host picked feeds the next step.
  std::vector<TokenId> known = Prompt(6, 2);
  known.push_back(result.rows.at(0).tokens.at(0));
  StepPlan next;
  next.diffs.push_back({1, 6, {{}}});
  AddRow(next, 1, 1, true);
  EXPECT_EQ(Step(*runner, next).rows.at(0).tokens, ReferenceGreedy(known, 1));
}

// Greedy tokens of the float64 reference with the penalties and biases of the spec.
std::vector<TokenId> ReferencePenalized(std::vector<TokenId> tokens, int32_t steps, const LogitsSpec& spec) {
  const ModelConfig config = TinyConfig();
  const auto weights = TinyWeights(config, 3);
  const ReferenceModel model(config, *weights);
  const auto prompt = static_cast<int64_t>(tokens.size());
  for (int32_t i = 0; i < steps; ++i) {
    auto x = model.Logits(tokens).back();
    for (const LogitBias& b : spec.logit_bias) x[b.id] += b.bias;
    for (size_t id = 0; id < x.size(); ++id) {
      const auto outputs = std::count(tokens.begin() + prompt, tokens.end(), static_cast<TokenId>(id));
      if (std::count(tokens.begin(), tokens.end(), static_cast<TokenId>(id)) == 0) continue;
      x[id] = x[id] > 0 ? x[id] / spec.repetition_penalty : x[id] * spec.repetition_penalty;
      x[id] -= spec.frequency_penalty * static_cast<double>(outputs) + (outputs > 0 ? spec.presence_penalty : 0.0f);
    }
    tokens.push_back(static_cast<TokenId>(std::max_element(x.begin(), x.end()) - x.begin()));
  }
  return {tokens.begin() + prompt, tokens.end()};
}

std::vector<LogitsSpec> PenaltySpecs() {
  std::vector<LogitsSpec> specs(4);
  specs[0].repetition_penalty = 1.8f;
  specs[1].frequency_penalty = 1.5f;
  specs[1].presence_penalty = -0.5f;
  specs[1].logit_bias = {{7, 1.0f}, {11, -3.0f}};
  specs[2].presence_penalty = 2.0f;
  specs[3].logit_bias = {{3, 1.5f}, {40, 0.5f}};
  return specs;
}

// Each step launched before the one before is finished: the host cannot know what is to be penalised. One row has none;
// the second round of sequences meets the tallies of the first in its slots.
TEST_P(Decode, PenaltiesKnowTokensThatTheHostDoesNot) {
  constexpr int32_t kSteps = 14;
  const auto specs = PenaltySpecs();
  const auto runner = Runner(/*eager=*/GetParam());
  PendingStep steps[2];
  for (int32_t round = 0; round < 2; ++round) {
    std::vector<std::vector<TokenId>> got(specs.size() + 1);
    const auto take = [&](PendingStep& step) {
      step.Finish();
      ASSERT_TRUE(step.result.status.ok()) << step.result.status.ToString();
      for (size_t r = 0; r < got.size(); ++r) got[r].push_back(step.result.rows.at(r).tokens.at(0));
    };
    for (int32_t i = 0; i < kSteps; ++i) {
      StepPlan plan;
      for (size_t r = 0; r < got.size(); ++r) {
        const auto id = static_cast<RequestId>(10 * round + r + 1);
        const int32_t salt = static_cast<int32_t>(r) + 7 * round, length = 9 + 3 * static_cast<int32_t>(r);
        if (i == 0) {
          if (round > 0) plan.removed.push_back(r + 1);
          NewSequence s = Sequence(id, Prompt(length, salt), length + kSteps);
          if (r < specs.size()) s.sampling.logits = specs[r];
          plan.added.push_back(std::move(s));
        } else {
          plan.diffs.push_back({id, length + i - 1, {{}}});
        }
        AddRow(plan, id, i == 0 ? length : 1, true);
      }
      runner->Launch(plan, &steps[i % 2]);
      if (i > 0) take(steps[(i - 1) % 2]);
    }
    take(steps[(kSteps - 1) % 2]);
    for (size_t r = 0; r < got.size(); ++r) {
      const int32_t salt = static_cast<int32_t>(r) + 7 * round, length = 9 + 3 * static_cast<int32_t>(r);
      const LogitsSpec spec = r < specs.size() ? specs[r] : LogitsSpec();
      EXPECT_EQ(got[r], ReferencePenalized(Prompt(length, salt), kSteps, spec)) << "round " << round << " row " << r;
    }
  }
}

// A row that the host samples (it asks for the logprobs of listed ids) comes and goes beside rows with penalties on the device: neither
// changes the other's tokens. A resumed sequence is counted anew, its output as output.
TEST(DeviceRunner, RowsOfTheHostAndOfTheDeviceShareSteps) {
  const auto specs = PenaltySpecs();
  const auto runner = Runner();
  constexpr int32_t kSteps = 9;
  std::vector<TokenId> penalized, plain;
  for (int32_t i = 0; i < kSteps; ++i) {
    StepPlan plan;
    const bool with_host = i % 3 != 0;
    if (i == 0 || i == 5) {  // at 5 as after a preemption
      if (i == 5) plan.removed.push_back(1);
      std::vector<TokenId> tokens = Prompt(8, 1);
      tokens.insert(tokens.end(), penalized.begin(), penalized.end());
      const auto known = static_cast<int32_t>(tokens.size());
      NewSequence s = Sequence(i == 0 ? 1 : 3, std::move(tokens), 8 + kSteps);
      s.num_prompt_tokens = 8;
      s.sampling.logits = specs[1];
      plan.added.push_back(std::move(s));
      AddRow(plan, i == 0 ? 1 : 3, known, true);
    } else {
      plan.diffs.push_back({i < 5 ? 1u : 3u, 8 + i - 1, {{}}});
      AddRow(plan, i < 5 ? 1 : 3, 1, true);
    }
    if (with_host) {
      const RequestId id = 97 + i;  // blocks of its own
      if (i % 3 == 1) {
        NewSequence s = Sequence(id, Prompt(6, 2), 9);
        s.sampling.logprobs = LogprobsSpec{2, {1}};
        plan.added.push_back(std::move(s));
        AddRow(plan, id, 6, true);
      } else {
        plan.diffs.push_back({id - 1, 6, {{}}});
        AddRow(plan, id - 1, 1, true);
      }
    } else if (i > 0) {
      plan.removed.push_back(97 + i - 2);
    }
    const StepResult result = Step(*runner, plan);
    ASSERT_TRUE(result.status.ok()) << result.status.ToString();
    penalized.push_back(result.rows.at(0).tokens.at(0));
    EXPECT_TRUE(result.rows.at(0).logprobs.empty());
    if (!with_host) continue;
    ASSERT_EQ(result.rows.at(1).logprobs.size(), 1u);
    EXPECT_EQ(result.rows.at(1).tokens.at(0), ReferenceGreedy(Prompt(6, 2), 2)[i % 3 - 1]);
  }
  EXPECT_EQ(penalized, ReferencePenalized(Prompt(8, 1), kSteps, specs[1]));
}

// Logprobs of what the device draws, read late; one row of three asks for none, one has penalties, which raw logprobs do
// not see.
TEST_P(Decode, LogprobsComeBackWithTheTokens) {
  constexpr int32_t kRows = 3, kSteps = 6, kTops = 4;
  const ModelConfig config = TinyConfig();
  const auto weights = TinyWeights(config, 3);
  const ReferenceModel model(config, *weights);
  const auto runner = Runner(/*eager=*/GetParam());
  std::vector<std::vector<TokenId>> tokens(kRows);
  PendingStep steps[2];
  const auto take = [&](PendingStep& step) {
    step.Finish();
    ASSERT_TRUE(step.result.status.ok()) << step.result.status.ToString();
    for (int32_t r = 0; r < kRows; ++r) {
      const SampledRow& row = step.result.rows.at(r);
      auto x = model.Logits(tokens[r]).back();
      tokens[r].push_back(row.tokens.at(0));
      if (r == 1) {
        EXPECT_TRUE(row.logprobs.empty());
        continue;
      }
      ASSERT_EQ(row.logprobs.size(), 1u);
      const PositionLogprobs& got = row.logprobs[0];
      double sum = 0.0;
      for (const double v : x) sum += std::exp(v);
      const auto above = [&](double v) { return std::count_if(x.begin(), x.end(), [v](double w) { return w > v; }); };
      EXPECT_EQ(got.at(0).token_id, tokens[r].back());
      EXPECT_EQ(got.at(0).rank, 1 + above(x[tokens[r].back()]));
      EXPECT_EQ(got.size(), static_cast<size_t>(got.at(0).rank <= kTops ? kTops : kTops + 1));
      for (const TokenLogprob& e : got) {
        EXPECT_NEAR(e.logprob, x[e.token_id] - std::log(sum), 2e-4);
        EXPECT_EQ(e.rank, 1 + above(x[e.token_id]));
      }
    }
  };
  for (int32_t i = 0; i < kSteps; ++i) {
    StepPlan plan;
    for (int32_t r = 0; r < kRows; ++r) {
      const auto id = static_cast<RequestId>(r + 1);
      const int32_t length = 9 + 3 * r;
      if (i == 0) {
        tokens[r] = Prompt(length, r);
        NewSequence s = Sequence(id, tokens[r], length + kSteps);
        if (r != 1) s.sampling.logprobs = LogprobsSpec{kTops, {}};
        if (r == 2) s.sampling.logits = PenaltySpecs()[2];
        plan.added.push_back(std::move(s));
      } else {
        plan.diffs.push_back({id, length + i - 1, {{}}});
      }
      AddRow(plan, id, i == 0 ? length : 1, true);
    }
    runner->Launch(plan, &steps[i % 2]);
    if (i > 0) take(steps[(i - 1) % 2]);
  }
  take(steps[(kSteps - 1) % 2]);
}

TEST(DeviceRunner, TheKvCacheIsSizedAfterTheRestHasItsMemory) {
  RunnerOptions options = Options(false);
  options.kv.num_blocks = 0;
  DeviceMemoryUse seen;
  options.size_kv = [&](const DeviceMemoryUse& use) -> Result<KvConfig> {
    seen = use;
    KvConfig kv = Options(false).kv;
    kv.num_blocks = 17;
    return kv;
  };
  auto runner = DeviceRunner::Create(Source(), options, nullptr);
  ASSERT_TRUE(runner.ok()) << runner.status().ToString();
  EXPECT_GT(seen.weight_bytes, 0);
  EXPECT_GT(seen.activation_bytes, 128 * 61 * 4);
  EXPECT_GT(seen.staging_bytes, 0);
  StepPlan plan;
  NewSequence s = Sequence(1, Prompt(6, 2), 8);
  s.block_ids = {{16, 17}};  // 17 is past the cache
  plan.added.push_back(std::move(s));
  AddRow(plan, 1, 6, true);
  EXPECT_EQ(Step(**runner, plan).status.code(), StatusCode::kInternal);
  options.size_kv = [](const DeviceMemoryUse&) -> Result<KvConfig> { return Status::ResourceExhausted("no room"); };
  EXPECT_EQ(DeviceRunner::Create(Source(), options, nullptr).status().message(), "no room");
}

TEST(DecodeLadder, SizesRiseToTheMost) {
  EXPECT_EQ(DecodeLadder(1), std::vector<int32_t>({1}));
  EXPECT_EQ(DecodeLadder(5), std::vector<int32_t>({1, 2, 4, 5}));
  EXPECT_EQ(DecodeLadder(100), std::vector<int32_t>({1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 100}));
  const auto large = DecodeLadder(1024);
  EXPECT_EQ(large.back(), 1024);
  EXPECT_TRUE(std::is_sorted(large.begin(), large.end()));
  EXPECT_EQ(std::adjacent_find(large.begin(), large.end()), large.end());
}

// A device whose graphs are lists of what was enqueued.
class RecordingDevice final : public ops::DeviceApi {
 public:
  mutable std::vector<std::string> calls;
  mutable int64_t free_bytes = 1000;
  mutable bool refuses = false;

  const char* name() const override { return "recording"; }
  ops::DeviceMemoryInfo memory() const override { return {1000, free_bytes}; }
  void* CreateStream() const override { return nullptr; }
  void DestroyStream(void*) const override {}
  void Synchronize(void*) const override {}
  void* AllocatePinned(size_t) const override { return nullptr; }
  void FreePinned(void*) const override {}
  void Copy(void*, const void*, size_t, void*) const override {}
  void Zero(void*, size_t, void*) const override {}
  void* CreateEvent() const override { return nullptr; }
  void DestroyEvent(void*) const override {}
  void RecordEvent(void*, void*) const override {}
  void WaitEvent(void*) const override {}
  bool has_graphs() const override { return true; }
  void BeginCapture(void*) const override { calls.push_back("begin"); }
  void* EndCapture(void*) const override {
    calls.push_back("end");
    return refuses ? nullptr : new int(0);
  }
  void LaunchGraph(void*, void*) const override { calls.push_back("launch"); }
  void DestroyGraph(void* graph) const override { delete static_cast<int*>(graph); }
};

TEST(DecodeGraphs, TheSecondUseCapturesAndLaterOnesReplay) {
  const RecordingDevice device;
  DecodeGraphs graphs(device, nullptr, 8, 100);
  EXPECT_EQ(graphs.SizeFor(3), 4);
  EXPECT_EQ(graphs.SizeFor(8), 8);
  EXPECT_EQ(graphs.SizeFor(9), 0);
  const auto step = [&] { device.calls.push_back("enqueue"); };
  using Calls = std::vector<std::string>;
  graphs.Run(4, step);
  EXPECT_EQ(device.calls, Calls({"enqueue"}));
  device.calls.clear();
  graphs.Run(4, step);
  EXPECT_EQ(device.calls, Calls({"begin", "enqueue", "end", "launch"}));
  device.calls.clear();
  graphs.Run(4, step);
  EXPECT_EQ(device.calls, Calls({"launch"}));
  EXPECT_EQ(graphs.num_captured(), 1);
}

TEST(DecodeGraphs, NothingIsCapturedWithoutMemoryOrAfterARefusal) {
  using Calls = std::vector<std::string>;
  const RecordingDevice device;
  const auto step = [&] { device.calls.push_back("enqueue"); };
  DecodeGraphs small(device, nullptr, 8, 100);
  device.free_bytes = 50;
  small.Run(4, step);
  small.Run(4, step);
  EXPECT_EQ(device.calls, Calls({"enqueue", "enqueue"}));
  device.free_bytes = 1000;
  device.refuses = true;
  device.calls.clear();
  DecodeGraphs refused(device, nullptr, 8, 100);
  for (int i = 0; i < 3; ++i) refused.Run(2, step);
  EXPECT_EQ(device.calls, Calls({"enqueue", "begin", "enqueue", "end", "enqueue", "enqueue"}));
}

}  // namespace
}  // namespace fastllm::runtime
