// Checks of the sampling parameters that need the model's facts, truncation, DRY's breakers, and the SamplingSpec.
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "core/config/field_access.h"
#include "core/request/dry_breakers.h"
#include "core/request/validate.h"
#include "core/sched/stop.h"

namespace fastllm {
namespace {

const RequestLimits kLimits{.vocab_size = 100, .max_model_len = 32, .kv_capacity_tokens = 1000, .has_tokens = true};

std::string Error(const SamplingParams& sampling, const RequestLimits& limits = kLimits) {
  const auto r = ValidateRequest({1}, sampling, limits);
  if (r.ok()) return "ok";
  EXPECT_EQ(r.status().code(), StatusCode::kInvalidArgument);
  return r.status().message();
}

template <typename T>
std::string Error(T SamplingParams::*field, const T& value, const RequestLimits& limits = kLimits) {
  SamplingParams s;
  s.*field = value;
  return Error(s, limits);
}

TEST(ValidateSampling, PenaltiesAndSamplers) {
  using S = SamplingParams;
  EXPECT_EQ(Error(&S::presence_penalty, 2.5f), "presence_penalty must be in [-2, 2], got 2.5");
  EXPECT_EQ(Error(&S::frequency_penalty, -2.5f), "frequency_penalty must be in [-2, 2], got -2.5");
  EXPECT_EQ(Error(&S::repetition_penalty, 0.0f), "repetition_penalty must be greater than 0, got 0");
  EXPECT_EQ(Error(&S::repetition_penalty, std::numeric_limits<float>::infinity()),
            "repetition_penalty must be finite and greater than 0, got inf");
  EXPECT_EQ(Error(&S::typical_p, 0.0f), "typical_p must be in (0, 1], got 0");
  EXPECT_EQ(Error(&S::xtc_probability, 1.5f), "xtc_probability must be in [0, 1], got 1.5");
  EXPECT_EQ(Error(&S::dry_base, 0.5f), "dry_base must be in [1, 1000000], got 0.5");
  EXPECT_EQ(Error(&S::top_n_sigma, -1.0f), "ok");
}

TEST(ValidateSampling, LogitBias) {
  using S = SamplingParams;
  const auto bias = [](std::vector<LogitBias> b) { return Error(&S::logit_bias, b); };
  EXPECT_EQ(bias({{99, 100.0f}, {0, -100.0f}}), "ok");
  EXPECT_EQ(bias({{100, 5.0f}}), "logit_bias token id must be in [0, 99], the model's vocabulary, got 100");
  EXPECT_EQ(bias({{-1, 5.0f}}), "logit_bias token id must be at least 0, got -1");
  EXPECT_EQ(bias({{7, 1000.0f}}), "logit_bias[7] must be in [-100, 100], got 1000");
  EXPECT_EQ(bias({{7, std::numeric_limits<float>::quiet_NaN()}}), "logit_bias[7] must be in [-100, 100], got nan");
  EXPECT_EQ(bias({{7, 1.0f}, {8, 1.0f}, {7, 2.0f}}), "logit_bias must hold a token id once, got 7 twice");
}

TEST(ValidateSampling, ListsOfTokens) {
  using S = SamplingParams;
  using Allowed = std::optional<std::vector<int32_t>>;
  EXPECT_EQ(Error(&S::allowed_token_ids, Allowed(std::in_place, {5})), "ok");
  EXPECT_EQ(Error(&S::allowed_token_ids, Allowed(std::vector<int32_t>())), "allowed_token_ids must not be empty");
  EXPECT_EQ(Error(&S::allowed_token_ids, Allowed(std::in_place, {5, 100})),
            "allowed_token_ids[1] must be in [0, 99], the model's vocabulary, got 100");
  EXPECT_EQ(Error(&S::allowed_token_ids, Allowed(std::vector<int32_t>(1000000, 3))),
            "allowed_token_ids must hold at most 100 ids, the model's vocabulary, got 1000000");
  EXPECT_EQ(Error(&S::logprob_token_ids, Allowed(std::vector<int32_t>(129, 3))),
            "logprob_token_ids must hold at most 128 ids, got 129");
  EXPECT_EQ(Error(&S::logprob_token_ids, Allowed(std::in_place, {100})),
            "logprob_token_ids[0] must be in [0, 99], the model's vocabulary, got 100");
}

TEST(ValidateSampling, BadWords) {
  using S = SamplingParams;
  using Words = std::vector<std::vector<int32_t>>;
  EXPECT_EQ(Error(&S::bad_words_token_ids, Words{{1, 2}, {3}}), "ok");
  EXPECT_EQ(Error(&S::bad_words_token_ids, Words{{1}, {}}), "bad_words_token_ids[1] must not be empty");
  EXPECT_EQ(Error(&S::bad_words_token_ids, Words{{1}, {2, 100}}),
            "bad_words_token_ids[1][1] must be in [0, 99], the model's vocabulary, got 100");
  EXPECT_EQ(Error(&S::bad_words_token_ids, Words(129, {1})), "bad_words must hold at most 128 words, got 129");
  EXPECT_EQ(Error(&S::bad_words_token_ids, Words(2, std::vector<int32_t>(600, 1))),
            "bad_words must hold at most 1024 tokens in all, got 1200");
  EXPECT_EQ(Error(&S::bad_words, {"x"}),
            "bad_words need a tokenizer, which the engine does not have: pass their tokens in bad_words_token_ids");
}

TEST(ValidateSampling, LogprobsUpToTheEnginesLimit) {
  using S = SamplingParams;
  using Count = std::optional<int32_t>;
  EXPECT_EQ(Error(&S::logprobs, Count(20)), "ok");
  EXPECT_EQ(Error(&S::logprobs, Count(21)), "logprobs must be at most max_logprobs (20), got 21");
  EXPECT_EQ(Error(&S::logprobs, Count(-2)), "logprobs must be at least -1, got -2");
  EXPECT_EQ(Error(&S::prompt_logprobs, Count(-1)),
            "prompt_logprobs must be at most max_logprobs (20), got -1, the whole vocabulary");
  RequestLimits open = kLimits;
  open.max_logprobs = -1;
  EXPECT_EQ(Error(&S::prompt_logprobs, Count(-1), open), "ok");
  open.max_logprobs = 100;
  EXPECT_EQ(Error(&S::logprobs, Count(-1), open), "ok");
}

TEST(ValidateSampling, DryBreakersNeedATokenTable) {
  SamplingParams s;
  s.dry_multiplier = 0.8f;
  EXPECT_EQ(Error(s), "ok");
  RequestLimits bare = kLimits;
  bare.has_tokens = false;
  EXPECT_EQ(Error(s, bare), "dry_sequence_breakers need a token table, and this engine was made without one");
  s.dry_sequence_breakers = {};
  EXPECT_EQ(Error(s, bare), "ok");
  s.dry_sequence_breakers = {"a", ""};
  EXPECT_EQ(Error(s), "dry_sequence_breakers[1] must not be empty");
}

TEST(DryBreakers, TokensThatHoldOneOfTheTexts) {
  auto table = std::make_shared<TokenTable>();
  table->bytes = {"a", "\n", ":\n", "b:", "\"x", "*", " ", "a*b"};
  table->special.assign(table->bytes.size(), 0);
  DryBreakers breakers(table);
  EXPECT_EQ(breakers.Find(DefaultDryBreakers()).value(), (std::vector<TokenId>{1, 2, 3, 4, 5, 7}));
  EXPECT_EQ(breakers.Find({"a*"}).value(), (std::vector<TokenId>{7}));
  EXPECT_EQ(breakers.Find({"a*"}).value(), (std::vector<TokenId>{7}));
  EXPECT_TRUE(breakers.Find({}).value().empty());
  EXPECT_EQ(breakers.Find({"a", "zz"}).status().message(),
            "dry_sequence_breakers[1] 'zz' is in no token of the vocabulary");
}

TEST(TruncatePrompt, KeepsTheEndOrTheBeginning) {
  const auto cut = [](std::optional<int32_t> keep, std::optional<std::string> side = {}, int32_t max_tokens = 4) {
    SamplingParams s;
    s.truncate_prompt_tokens = keep;
    s.truncation_side = side;
    s.max_tokens = max_tokens;
    std::vector<TokenId> prompt = {1, 2, 3, 4, 5, 6, 7, 8};
    TruncatePrompt(s, 9, &prompt);
    return prompt;
  };
  EXPECT_EQ(cut({}).size(), 8u);
  EXPECT_EQ(cut(3), (std::vector<TokenId>{6, 7, 8}));
  EXPECT_EQ(cut(3, "right"), (std::vector<TokenId>{1, 2, 3}));
  EXPECT_EQ(cut(8).size(), 8u);
  EXPECT_EQ(cut(-1), (std::vector<TokenId>{4, 5, 6, 7, 8}));  // 5 + max_tokens 4 = max_model_len
  EXPECT_EQ(cut(-1, {}, 50).size(), 1u);
}

TEST(SamplingSpec, OnlyWhatIsAskedForIsThere) {
  Request request;
  request.prompt = {1};
  SamplingSpec spec = MakeSamplingSpec(request);
  EXPECT_FALSE(spec.logits.has_value());
  EXPECT_FALSE(spec.logprobs.has_value());
  EXPECT_FALSE(spec.prompt_logprobs.has_value());
  request.sampling.dry_multiplier = 0.5f;
  request.sampling.dry_range = -1;
  request.dry_breakers = {4, 9};
  request.sampling.logprob_token_ids = {{5, 6}};
  request.sampling.prompt_logprobs = 3;
  spec = MakeSamplingSpec(request);
  ASSERT_TRUE(spec.logits.has_value());
  EXPECT_EQ(spec.logits->dry_breakers, (std::vector<TokenId>{4, 9}));
  EXPECT_EQ(spec.logits->dry_range, 0);
  ASSERT_TRUE(spec.logprobs.has_value());
  EXPECT_EQ(spec.logprobs->num_top, 0);
  EXPECT_EQ(spec.logprobs->ids, (std::vector<TokenId>{5, 6}));
  EXPECT_EQ(spec.prompt_logprobs, 3);
}

TEST(SamplingFields, MapsAndListsOfLists) {
  SamplingParams p;
  using Biases = std::vector<std::pair<int64_t, double>>;
  using Lists = std::vector<std::vector<int64_t>>;
  ASSERT_TRUE(SetField(p, "logit_bias", Biases{{5, 1.5}, {7, -0.1}}).ok());
  EXPECT_EQ(p.logit_bias, (std::vector<LogitBias>{{5, 1.5f}, {7, -0.1f}}));
  EXPECT_EQ(GetField(p, "logit_bias").value(), FieldValue(Biases{{5, 1.5}, {7, -0.1}}));
  EXPECT_EQ(SetField(p, "logit_bias", Biases{{5, 101.0}}).message(), "logit_bias[5] must be in [-100, 100], got 101");
  EXPECT_EQ(SetField(p, "logit_bias", Biases{{-5, 1.0}}).message(), "logit_bias token id must be at least 0, got -5");
  EXPECT_EQ(SetField(p, "logit_bias", std::string("5")).message(),
            "logit_bias must be a map from token ids to numbers, got '5'");
  EXPECT_EQ(p.logit_bias.size(), 2u) << "changed on error";
  ASSERT_TRUE(SetField(p, "bad_words_token_ids", Lists{{1, 2}, {3}}).ok());
  EXPECT_EQ(p.bad_words_token_ids, (std::vector<std::vector<int32_t>>{{1, 2}, {3}}));
  EXPECT_EQ(SetField(p, "bad_words_token_ids", Lists{{1}, {2, -3}}).message(),
            "bad_words_token_ids[1][1] must be at least 0, got -3");
  ASSERT_TRUE(SetField(p, "bad_words_token_ids", std::vector<int64_t>{}).ok());
  EXPECT_TRUE(p.bad_words_token_ids.empty());
  EXPECT_EQ(FormatFieldValue(Biases{{5, 1.5}, {7, -1}}), "{5: 1.5, 7: -1}");
  EXPECT_EQ(FormatFieldValue(Lists{{1, 2}, {}}), "[[1, 2], []]");
  EXPECT_EQ(FieldType<SamplingParams>("extra_args"), "json");
  EXPECT_EQ(FieldType<SamplingParams>("no_such"), "");
}

TEST(SamplingFields, WordsOfTheCommandLine) {
  const auto parse = [](std::string_view name, std::string_view text) {
    for (const FieldDescription& f : ListFields<SamplingParams>()) {
      if (f.name == name) return ParseFieldText(f, text);
    }
    return Result<FieldValue>(Status::NotFound(std::string(name)));
  };
  using Biases = std::vector<std::pair<int64_t, double>>;
  EXPECT_EQ(parse("logit_bias", "5:1.5,7:-1").value(), FieldValue(Biases{{5, 1.5}, {7, -1.0}}));
  EXPECT_EQ(parse("logit_bias", "5").status().message(),
            "logit_bias must be id:bias pairs with commas between, got '5'");
  EXPECT_EQ(parse("logit_bias", "abc:1").status().message(), "logit_bias keys must be token ids, got 'abc'");
  EXPECT_EQ(parse("bad_words_token_ids", "1,2;3").value(), FieldValue(std::vector<std::vector<int64_t>>{{1, 2}, {3}}));
  EXPECT_EQ(parse("allowed_token_ids", "1,2").value(), FieldValue(std::vector<int64_t>{1, 2}));
  EXPECT_EQ(parse("allowed_token_ids", "none").value(), FieldValue());
}

}  // namespace
}  // namespace fastllm
