#include "fastllm/config_json.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace fastllm {
namespace {

std::string ErrorOf(const Status& status) {
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  return status.message();
}

TEST(ConfigJson, ReadsEveryKindOfValueAndKeepsDefaults) {
  const auto p = SamplingParamsFromJson(
      R"({"temperature": 0.5, "max_tokens": null, "stop": ["a", "é"], "stop_token_ids": [1, 2], "ignore_eos": true})");
  ASSERT_TRUE(p.ok()) << p.status().ToString();
  EXPECT_EQ(p->temperature, 0.5f);
  EXPECT_FALSE(p->max_tokens.has_value());
  EXPECT_EQ(p->stop, (std::vector<std::string>{"a", "é"}));
  EXPECT_EQ(p->stop_token_ids, (std::vector<int32_t>{1, 2}));
  EXPECT_TRUE(p->ignore_eos);
  EXPECT_EQ(p->top_p, SamplingParams().top_p);
}

TEST(ConfigJson, WhatIsWrittenReadsBack) {
  EngineConfig config;
  config.model.model = "a \"quoted\" path";
  config.cache.block_size = 32;
  const std::string text = ToJson(config);
  const auto back = EngineConfigFromJson(text);
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  EXPECT_EQ(back->model.model, config.model.model);
  EXPECT_EQ(back->cache.block_size, 32);
  EXPECT_EQ(ToJson(*back), text);
}

TEST(ConfigJson, RefusesWithTheNameOfTheKey) {
  EXPECT_NE(ErrorOf(SamplingParamsFromJson(R"({"temprature": 1})").status()).find("'temperature'"), std::string::npos);
  EXPECT_NE(ErrorOf(SamplingParamsFromJson(R"({"top_p": 1.5})").status()).find("top_p"), std::string::npos);
  EXPECT_NE(ErrorOf(SamplingParamsFromJson(R"({"stop": [1, "a"]})").status()).find("stop"), std::string::npos);
  EXPECT_NE(ErrorOf(SamplingParamsFromJson(R"({"seed": 18446744073709551615})").status()).find("64 bits"),
            std::string::npos);
  EXPECT_EQ(ErrorOf(SamplingParamsFromJson("{").status()), "configuration is not valid JSON");
  EXPECT_EQ(ErrorOf(EngineConfigFromJson("[]").status()), "configuration must be a JSON object, got array");
}

}  // namespace
}  // namespace fastllm
