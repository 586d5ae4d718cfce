// OpenModel on config.json in its old and new forms, and on values that are wrong.
#include <gtest/gtest.h>

#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/models/config/generation_config.h"
#include "runtime/models/model_config.h"
#include "runtime/nn/rotary.h"

namespace fastllm::runtime {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Scaling = RopeConfig::Scaling;

json Base() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"vocab_size", 100},
          {"hidden_size", 64},
          {"intermediate_size", 128},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"max_position_embeddings", 256},
          {"rms_norm_eps", 1e-6},
          {"eos_token_id", 2}};
}

class OpenModelTest : public ::testing::Test {
 protected:
  OpenModelTest() : folder_(fs::temp_directory_path() / ("fastllm_open_model_" + std::to_string(::getpid()))) {
    fs::create_directories(folder_);
  }
  ~OpenModelTest() override { fs::remove_all(folder_); }

  void Write(const std::string& name, const std::string& text) { std::ofstream(folder_ / name) << text; }

  Result<ModelSource> Open(const json& changes) {
    json config = Base();
    config.merge_patch(changes);  // null removes a key
    Write("config.json", config.dump());
    return OpenModel(folder_.string(), "dummy");
  }

  ModelConfig Config(const json& changes) {
    auto source = Open(changes);
    EXPECT_TRUE(source.ok()) << source.status().ToString();
    return source.ok() ? source->config : ModelConfig();
  }

  void ExpectError(const json& changes, StatusCode code, const std::string& part) {
    const Status status = Open(changes).status();
    EXPECT_EQ(status.code(), code) << status.ToString();
    EXPECT_NE(status.message().find(part), std::string::npos) << status.ToString();
  }

  fs::path folder_;
};

TEST_F(OpenModelTest, DefaultsFollowTheConfig) {
  const ModelConfig c = Config(json::object());
  EXPECT_EQ(c.num_kv_heads, 4);
  EXPECT_EQ(c.head_dim, 16);
  EXPECT_EQ(c.rope.rotary_dim, 16);
  EXPECT_EQ(c.rope.theta, 10000.0);
  EXPECT_EQ(c.rope.scaling, Scaling::kNone);
  EXPECT_FALSE(c.rope.interleaved);
  EXPECT_FALSE(c.tie_word_embeddings);
  EXPECT_EQ(c.eos_token_ids, std::vector<int32_t>{2});
}

TEST_F(OpenModelTest, SamplingDefaultsAndEndOfSequenceIdsOfTheModel) {
  Write("generation_config.json",
        R"({"temperature": 0.5, "top_k": 7, "top_p": null, "repetition_penalty": 1.25, "max_new_tokens": 9,
            "do_sample": false, "eos_token_id": [2, 5]})");
  const auto open = [this](const std::string& option) {
    Write("config.json", Base().dump());
    return OpenModel(folder_.string(), "dummy", option);
  };
  const auto own = open("auto");
  ASSERT_TRUE(own.ok()) << own.status().ToString();
  EXPECT_EQ(own->sampling.stated,
            (std::vector<std::string>{"temperature", "top_k", "repetition_penalty", "max_tokens"}));
  EXPECT_EQ(own->sampling.params.temperature, 0.5f);
  EXPECT_EQ(own->sampling.params.top_k, 7);
  EXPECT_EQ(own->sampling.params.repetition_penalty, 1.25f);
  EXPECT_EQ(own->sampling.params.max_tokens, 9);
  EXPECT_EQ(own->config.eos_token_ids, (std::vector<int32_t>{2, 5}));
  const auto none = open("vllm");
  ASSERT_TRUE(none.ok());
  EXPECT_TRUE(none->sampling.stated.empty());
  EXPECT_EQ(none->config.eos_token_ids, (std::vector<int32_t>{2, 5}));
  EXPECT_EQ(open("nowhere").status().code(), StatusCode::kNotFound);
  Write("generation_config.json", R"({"top_p": 2})");
  EXPECT_EQ(open("auto").status().message(), "generation_config.json: top_p: top_p must be in (0, 1], got 2");
}

TEST_F(OpenModelTest, SamplingDefaultsOfGguf) {
  const json metadata = {{"general.sampling.temp", 0.25},          {"general.sampling.top_k", 40},
                         {"general.sampling.top_p", 0.5},          {"general.sampling.min_p", 0.125},
                         {"general.sampling.mirostat", 2},         {"general.sampling.xtc_probability", 0.75},
                         {"general.sampling.xtc_threshold", 0.25}, {"general.sampling.penalty_repeat", 1.5}};
  SamplingDefaults defaults;
  const ConfigReader reader(metadata, "GGUF metadata");
  ReadGgufSampling(reader, &defaults);
  ASSERT_TRUE(reader.status().ok()) << reader.status().ToString();
  EXPECT_EQ(defaults.stated, (std::vector<std::string>{"temperature", "top_k", "top_p", "min_p", "xtc_probability",
                                                       "xtc_threshold", "repetition_penalty"}));
  EXPECT_EQ(defaults.params.temperature, 0.25f);
  EXPECT_EQ(defaults.params.top_k, 40);
  EXPECT_EQ(defaults.params.top_p, 0.5f);
  EXPECT_EQ(defaults.params.min_p, 0.125f);
  EXPECT_EQ(defaults.params.xtc_probability, 0.75f);
  EXPECT_EQ(defaults.params.xtc_threshold, 0.25f);
  EXPECT_EQ(defaults.params.repetition_penalty, 1.5f);
}

TEST_F(OpenModelTest, HeadDimOverridesTheQuotient) { EXPECT_EQ(Config({{"head_dim", 24}}).head_dim, 24); }

TEST_F(OpenModelTest, OldAndNewRopeFormsMeanTheSame) {
  const json scaling = {{"rope_type", "llama3"},
                        {"factor", 8.0},
                        {"low_freq_factor", 1.0},
                        {"high_freq_factor", 4.0},
                        {"original_max_position_embeddings", 64}};
  json parameters = scaling;
  parameters["rope_theta"] = 500000.0;
  const ModelConfig fresh = Config({{"rope_parameters", parameters}});
  json old = scaling;
  old["type"] = old["rope_type"];
  old.erase("rope_type");
  const ModelConfig aged = Config({{"rope_theta", 500000.0}, {"rope_scaling", old}});
  for (const ModelConfig& c : {fresh, aged}) {
    EXPECT_EQ(c.rope.scaling, Scaling::kLlama3);
    EXPECT_EQ(c.rope.theta, 500000.0);
    EXPECT_EQ(c.rope.original_max_position, 64);
  }
  EXPECT_EQ(RopeFrequencies(fresh.rope), RopeFrequencies(aged.rope));
  // Pair 0 turns 64 / 2 pi = 10 times over the original context, so it is kept; the last one is stretched by 8.
  EXPECT_DOUBLE_EQ(RopeFrequencies(fresh.rope)[0], 1.0);
  EXPECT_DOUBLE_EQ(RopeFrequencies(fresh.rope)[7], std::pow(500000.0, -14.0 / 16.0) / 8.0);
}

TEST_F(OpenModelTest, YarnAttentionFactorIsDerivedOrTaken) {
  json yarn = {{"rope_type", "yarn"}, {"factor", 8.0}, {"original_max_position_embeddings", 32}};
  EXPECT_DOUBLE_EQ(RopeAttentionFactor(Config({{"rope_parameters", yarn}}).rope), 0.1 * std::log(8.0) + 1.0);
  yarn["attention_factor"] = 0.5;
  EXPECT_DOUBLE_EQ(RopeAttentionFactor(Config({{"rope_parameters", yarn}}).rope), 0.5);
}

TEST_F(OpenModelTest, GenerationConfigAddsItsEosIdsAfterThePrimary) {
  Write("generation_config.json", R"({"eos_token_id": [7, 2, 9]})");
  EXPECT_EQ(Config({{"eos_token_id", {2, 3}}}).eos_token_ids, (std::vector<int32_t>{2, 3, 7, 9}));
}

TEST_F(OpenModelTest, WrongValuesAreNamedWithTheirLimit) {
  const StatusCode bad = StatusCode::kInvalidArgument;
  ExpectError({{"hidden_size", nullptr}}, bad, "hidden_size is missing");
  ExpectError({{"hidden_size", -64}}, bad, "hidden_size is -64; must be an integer in [1, 1048576]");
  ExpectError({{"hidden_size", "64"}}, bad, "hidden_size is \"64\"");
  ExpectError({{"num_hidden_layers", 0}}, bad, "num_hidden_layers is 0");
  ExpectError({{"num_hidden_layers", 1.5}}, bad, "num_hidden_layers is 1.5");
  ExpectError({{"vocab_size", 1e18}}, bad, "vocab_size");
  ExpectError({{"num_key_value_heads", 3}}, bad, "must divide the 4 attention heads");
  ExpectError({{"hidden_size", 66}}, bad, "must be a multiple of the 4");
  ExpectError({{"rms_norm_eps", "small"}}, bad, "rms_norm_eps");
  ExpectError({{"eos_token_id", 100}}, bad, "eos_token_id is 100; must be an integer in [0, 99]");
  ExpectError({{"rope_theta", 0.0}}, bad, "rope_theta");
  ExpectError({{"rope_scaling", {{"type", "linear"}}}}, bad, "factor is missing");
  ExpectError({{"rope_scaling", "linear"}}, bad, "rope_scaling is \"linear\"; must be an object");
  ExpectError({{"head_dim", 15}}, bad, "15 rotated elements");
  ExpectError({{"architectures", nullptr}}, bad, "architectures is missing");
}

TEST_F(OpenModelTest, WhatThisBuildCannotDoIsRefusedByName) {
  const StatusCode refused = StatusCode::kUnimplemented;
  ExpectError({{"architectures", {"MambaForCausalLM"}}}, refused,
              "\"MambaForCausalLM\" is not known; known: LlamaForCausalLM");
  ExpectError({{"rope_scaling", {{"type", "longrope"}, {"factor", 2}}}}, refused, "\"longrope\"");
  ExpectError({{"hidden_act", "gelu"}}, refused, "hidden_act is \"gelu\"");
  ExpectError({{"quantization_config", {{"quant_method", "awq"}}}}, refused, "awq");
}

TEST_F(OpenModelTest, PathsAndFilesThatAreNotThere) {
  EXPECT_EQ(OpenModel((folder_ / "none").string(), "auto").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(OpenModel(folder_.string(), "auto").status().code(), StatusCode::kNotFound);  // no config.json
  EXPECT_EQ(OpenModel(folder_.string(), "magic").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(OpenModel(folder_.string(), "gguf").status().code(), StatusCode::kInvalidArgument);
  Write("config.json", "{\"vocab_size\": ");
  EXPECT_EQ(OpenModel(folder_.string(), "dummy").status().code(), StatusCode::kDataLoss);
  Write("config.json", "[1]");
  EXPECT_EQ(OpenModel(folder_.string(), "dummy").status().code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace fastllm::runtime
