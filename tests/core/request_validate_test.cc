#include <gtest/gtest.h>

#include <limits>

#include "core/request/validate.h"

namespace fastllm {
namespace {

const RequestLimits kLimits{.vocab_size = 100, .max_model_len = 32, .kv_capacity_tokens = 1000, .has_tokens = true};

std::vector<TokenId> Prompt(size_t n) { return std::vector<TokenId>(n, 5); }

std::string Error(const std::vector<TokenId>& prompt, const SamplingParams& sampling = {},
                  const RequestLimits& limits = kLimits) {
  const auto r = ValidateRequest(prompt, sampling, limits);
  EXPECT_FALSE(r.ok());
  EXPECT_EQ(r.status().code(), StatusCode::kInvalidArgument);
  return r.status().message();
}

int32_t Ok(const std::vector<TokenId>& prompt, const SamplingParams& sampling = {},
           const RequestLimits& limits = kLimits) {
  const auto r = ValidateRequest(prompt, sampling, limits);
  EXPECT_TRUE(r.ok()) << r.status().ToString();
  return r.ok() ? r.value() : -1;
}

TEST(ValidateRequest, MaxTokensIsClippedToTheRoom) {
  SamplingParams s;
  EXPECT_EQ(Ok(Prompt(4)), 16);  // the default of SamplingParams
  s.max_tokens = 1000;
  EXPECT_EQ(Ok(Prompt(4), s), 28);
  s.max_tokens.reset();
  EXPECT_EQ(Ok(Prompt(4), s), 28);
  EXPECT_EQ(Ok(Prompt(31), s), 1);
  RequestLimits pool = kLimits;
  pool.kv_capacity_tokens = 16;
  EXPECT_EQ(Ok(Prompt(4), s, pool), 12);
}

TEST(ValidateRequest, PromptLength) {
  EXPECT_EQ(Error({}), "the prompt must have at least 1 token, got 0");
  EXPECT_EQ(Error(Prompt(32)),
            "the prompt must have at most 31 tokens to leave room for one output token in max_model_len (32), got 32");
  RequestLimits pool = kLimits;
  pool.kv_capacity_tokens = 16;
  EXPECT_EQ(Error(Prompt(16), {}, pool),
            "the prompt must have at most 15 tokens to leave room for one output token in the KV cache (16 tokens), "
            "got 16");
}

TEST(ValidateRequest, TokenIds) {
  EXPECT_EQ(Error({1, 100}), "prompt_token_ids[1] must be in [0, 99], the model's vocabulary, got 100");
  EXPECT_EQ(Error({-1}), "prompt_token_ids[0] must be in [0, 99], the model's vocabulary, got -1");
  SamplingParams s;
  s.stop_token_ids = {99, 100};
  EXPECT_EQ(Error({1}, s), "stop_token_ids[1] must be in [0, 99], the model's vocabulary, got 100");
}

TEST(ValidateRequest, EveryFieldIsChecked) {
  SamplingParams s;
  s.top_p = 1.5f;
  EXPECT_EQ(Error({1}, s), "top_p must be in (0, 1], got 1.5");
  s = {};
  s.temperature = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Error({1}, s), "temperature must be in [0, 1000000], got inf");
  s = {};
  s.max_tokens = -3;
  EXPECT_EQ(Error({1}, s), "max_tokens must be at least 1, got -3");
  s = {};
  s.min_tokens = 17;
  EXPECT_EQ(Error({1}, s), "min_tokens must be at most max_tokens (16), got 17");
}

TEST(ValidateRequest, OutputsTimesThePromptsTokens) {
  RequestLimits big = kLimits;
  big.max_model_len = big.kv_capacity_tokens = 10000;
  SamplingParams s;
  s.n = 16384;
  EXPECT_EQ(Ok(Prompt(4096), s, big), 16);  // 2^26 exactly
  EXPECT_EQ(Error(Prompt(4097), s, big), "n times the prompt's tokens must be at most 67108864, got 16384 times 4097");
}

TEST(ValidateRequest, StopStrings) {
  SamplingParams s;
  s.stop = {"ok"};
  EXPECT_EQ(Ok({1}, s), 16);
  s.detokenize = false;
  EXPECT_EQ(Error({1}, s), "stop strings need detokenize, which is false");
  s.detokenize = true;
  RequestLimits bare = kLimits;
  bare.has_tokens = false;
  EXPECT_EQ(Error({1}, s, bare), "stop strings need a token table, and this engine was made without one");
  s.stop = {"ok", ""};
  EXPECT_EQ(Error({1}, s), "stop[1] must not be empty");
  s.stop = {"\xC3"};
  EXPECT_EQ(Error({1}, s), "stop[0] must be valid UTF-8");
}

}  // namespace
}  // namespace fastllm
