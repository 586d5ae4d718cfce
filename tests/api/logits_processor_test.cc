// Logits processors and several outputs through the public API, on a tiny model with random weights.
#include "fastllm/logits_processor.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>

#include "fastllm/engine.h"

namespace fastllm {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<int32_t>;

constexpr int32_t kVocab = 64;
constexpr float kNever = -std::numeric_limits<float>::infinity();

// The only token that is left is the number of output tokens, plus the first of the prompt.
class CountUp : public LogitsProcessor {
 public:
  std::string Name() const override { return "count_up"; }
  std::vector<std::string> ArgNames() const override { return {"count_up"}; }
  Status ValidateParams(const SamplingParams& params) const override {
    if (params.extra_args.text.find("true") != std::string::npos) return Status::Ok();
    return Status::InvalidArgument("count_up must be true");
  }
  bool IsArgmaxInvariant() const override { return false; }
  Status Apply(std::span<ProcessorRow> rows) override {
    for (ProcessorRow& row : rows) {
      EXPECT_EQ(row.logits.size(), static_cast<size_t>(kVocab));
      const auto next = row.prompt_token_ids.front() + static_cast<int32_t>(row.output_token_ids.size());
      std::fill(row.logits.begin(), row.logits.end(), kNever);
      row.logits[next] = 0.0f;
      handles_.insert({row.request_id, row.index});
    }
    return Status::Ok();
  }

  std::set<std::pair<uint64_t, int32_t>> handles_;
};

class Throws : public LogitsProcessor {
 public:
  std::string Name() const override { return "throws"; }
  std::vector<std::string> ArgNames() const override { return {"throws", "fails", "refuses_row"}; }
  bool IsArgmaxInvariant() const override { return false; }
  Status Apply(std::span<ProcessorRow> rows) override {
    for (ProcessorRow& row : rows) {
      const std::string& args = row.params->extra_args.text;
      if (args.find("throws") != std::string::npos) throw std::runtime_error("out of luck");
      if (args.find("fails") != std::string::npos) return Status::Internal("no good");
      if (row.index == 1) row.status = Status::Internal("not output 1");
    }
    return Status::Ok();
  }
};

class EngineApi : public ::testing::Test {
 protected:
  EngineApi() : folder_(fs::temp_directory_path() / ("fastllm_api_test_" + std::to_string(::getpid()))) {
    fs::create_directories(folder_);
    std::ofstream(folder_ / "config.json")
        << R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64,
               "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
               "max_position_embeddings": 256, "tie_word_embeddings": false, "eos_token_id": 63})";
    EngineConfig config;
    config.model.model = folder_.string();
    config.model.load_format = "dummy";
    config.cache.num_gpu_blocks_override = 100;
    config.runtime.cpu_threads = 1;
    auto engine = Engine::Create(config, {}, {count_up_, std::make_shared<Throws>()});
    EXPECT_TRUE(engine.ok()) << engine.status().ToString();
    engine_ = std::move(engine).value();
  }
  ~EngineApi() override { fs::remove_all(folder_); }

  uint64_t Submit(Ids prompt, const std::string& extra_args, int32_t n = 1) {
    GenerationRequest request;
    request.prompt_token_ids = std::move(prompt);
    request.sampling.n = n;
    request.sampling.max_tokens = 4;
    request.sampling.seed = 5;
    request.sampling.ignore_eos = true;
    request.sampling.extra_args.text = extra_args;
    auto handle = engine_->Submit(std::move(request));
    EXPECT_TRUE(handle.ok()) << handle.status().ToString();
    return handle.ok() ? *handle : 0;
  }

  Status Refusal(const std::string& extra_args) {
    GenerationRequest request;
    request.prompt_token_ids = {1};
    request.sampling.extra_args.text = extra_args;
    const Status status = engine_->Validate(request);
    EXPECT_EQ(engine_->Submit(request).status().message(), status.message());
    return status;
  }

  struct Output {
    Ids ids;
    RequestDelta last;
  };
  // By (handle, index), until so many outputs have ended.
  std::map<std::pair<uint64_t, int32_t>, Output> Collect(size_t count) {
    std::map<std::pair<uint64_t, int32_t>, Output> outputs;
    while (count > 0) {
      const auto deltas = engine_->Drain(std::chrono::seconds(60));
      if (deltas.empty()) {
        ADD_FAILURE() << count << " outputs did not end";
        break;
      }
      for (const RequestDelta& d : deltas) {
        Output& o = outputs[{d.request_id, d.index}];
        o.ids.insert(o.ids.end(), d.token_ids.begin(), d.token_ids.end());
        o.last = d;
        if (d.finish_reason != FinishReason::kNone) --count;
      }
    }
    return outputs;
  }

  fs::path folder_;
  std::shared_ptr<CountUp> count_up_ = std::make_shared<CountUp>();
  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineApi, AProcessorChangesTheRequestsThatNameItsArgument) {
  const uint64_t plain = Submit({9, 9}, "");
  const uint64_t counts = Submit({9, 9}, R"({"count_up": true})", 2);
  auto outputs = Collect(3);
  EXPECT_EQ((outputs[{counts, 0}].ids), (Ids{9, 10, 11, 12}));
  EXPECT_EQ((outputs[{counts, 1}].ids), (Ids{9, 10, 11, 12}));
  EXPECT_NE((outputs[{plain, 0}].ids), (Ids{9, 10, 11, 12}));
  engine_->Shutdown();
  EXPECT_EQ(count_up_->handles_, (std::set<std::pair<uint64_t, int32_t>>{{counts, 0}, {counts, 1}}));
}

TEST_F(EngineApi, WhatAProcessorThrowsEndsItsRequestsAlone) {
  const uint64_t counts = Submit({3}, R"({"count_up": true})");
  const uint64_t throws = Submit({3}, R"({"throws": 1})");
  auto outputs = Collect(2);
  EXPECT_EQ((outputs[{counts, 0}].ids), (Ids{3, 4, 5, 6}));
  EXPECT_EQ((outputs[{throws, 0}].last.finish_reason), FinishReason::kError);
  EXPECT_EQ((outputs[{throws, 0}].last.error), "throws failed: out of luck");
  const uint64_t fails = Submit({3}, R"({"fails": 1})");
  EXPECT_EQ((Collect(1)[{fails, 0}].last.error), "throws failed: no good");
  EXPECT_TRUE(engine_->health().ok());
}

TEST_F(EngineApi, ARowAloneCanBeRefused) {
  const uint64_t handle = Submit({3}, R"({"refuses_row": 1})", 3);
  auto outputs = Collect(3);
  EXPECT_EQ((outputs[{handle, 0}].last.finish_reason), FinishReason::kLength);
  EXPECT_EQ((outputs[{handle, 1}].last.error), "throws failed: not output 1");
  EXPECT_EQ((outputs[{handle, 2}].last.finish_reason), FinishReason::kLength);
}

TEST_F(EngineApi, ArgumentsAreKnownOrAnError) {
  EXPECT_EQ(Refusal(R"({"count_up": false})").message(), "count_up must be true");
  EXPECT_NE(Refusal(R"({"count_upp": true})").message().find("did you mean 'count_up'?"), std::string::npos)
      << Refusal(R"({"count_upp": true})").message();
  EXPECT_EQ(Refusal("[1]").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Refusal("{").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Submit({1}, "{}") == 0, false);
}

TEST_F(EngineApi, OutputsOfASeedAreThoseOfTheSeedsBehindIt) {
  const uint64_t together = Submit({9, 9}, "", 3);
  auto outputs = Collect(3);
  std::set<Ids> different;
  for (int32_t i = 0; i < 3; ++i) {
    GenerationRequest request;
    request.prompt_token_ids = {9, 9};
    request.sampling.max_tokens = 4;
    request.sampling.seed = 5 + i;
    request.sampling.ignore_eos = true;
    const auto alone = engine_->Submit(std::move(request));
    ASSERT_TRUE(alone.ok());
    const Ids ids = Collect(1)[{*alone, 0}].ids;
    EXPECT_EQ((outputs[{together, i}].ids), ids);
    different.insert(ids);
  }
  EXPECT_EQ(different.size(), 3u);
}

TEST_F(EngineApi, OnlyTheFirstOutputHasTheLogprobsOfThePrompt) {
  GenerationRequest request;
  request.prompt_token_ids = Ids(40, 7);
  request.sampling.n = 2;
  request.sampling.max_tokens = 2;
  request.sampling.prompt_logprobs = 0;
  const auto handle = engine_->Submit(std::move(request));
  ASSERT_TRUE(handle.ok());
  std::map<int32_t, size_t> num_positions;
  for (size_t left = 2; left > 0;) {
    for (const RequestDelta& d : engine_->Drain(std::chrono::seconds(60))) {
      num_positions[d.index] += d.prompt_logprobs.size();
      if (d.finish_reason == FinishReason::kNone) continue;
      --left;
      EXPECT_EQ(d.num_cached_tokens, d.index == 0 ? 0 : 32);
    }
  }
  EXPECT_EQ(num_positions[0], 40u);
  EXPECT_EQ(num_positions[1], 0u);
}

}  // namespace
}  // namespace fastllm
