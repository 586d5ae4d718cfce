#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <random>
#include <string>

#include "core/step/codec.h"

namespace fastllm {
namespace {

StepPlan SamplePlan() {
  StepPlan plan;
  plan.step_id = 0x0102030405060708;
  plan.removed = {7, std::numeric_limits<uint64_t>::max()};
  NewSequence added;
  added.id = 9;
  added.tokens = {1, 2, 3, -1, std::numeric_limits<int32_t>::max()};
  added.num_prompt_tokens = 4;
  added.num_computed_tokens = 2;
  added.sampling = {0.7f, 0.9f, 40, 0.05f, 0xDEADBEEFCAFEF00D, 3, {2, 11}, 0.8f, 1.5f, 0.25f, 0.2f, {}, {}, {}, {}};
  added.sampling.logits = LogitsSpec{
      1.1f, 0.5f, -0.25f, {{7, -1.5f}, {9, 100.0f}}, {3, 1, 2}, {{5}, {6, 7, 8}}, 0.8f, 1.75f, 3, 512, {10, 20}};
  added.sampling.logprobs = LogprobsSpec{5, {1, 30000}};
  added.sampling.prompt_logprobs = -1;
  added.block_ids = {{1, 2, 3}, {}, {4}};
  added.repeats_last = true;
  plan.added = {added, NewSequence{}};
  plan.diffs = {{5, 17, {{8}, {9, 10}}}, {6, 0, {}}};
  plan.rows = {{9, 3, true}, {5, 1, true}, {6, 12, false}};
  plan.total_tokens = 16;
  return plan;
}

StepResult SampleResult() {
  StepResult result;
  result.step_id = 3;
  result.status = Status::Internal("device \xC3\xA9 lost");
  result.rows = {{9, {4}, {{{4, -0.25f, 2}, {11, -0.125f, 1}}}}, {5, {}}, {6, {-1, 7, 8}}};
  result.prompt_logprobs = {{9, 1, {{{3, -1.5f, 40}}, {}}}};
  return result;
}

void ExpectEqual(const SamplingSpec& a, const SamplingSpec& b) {
  EXPECT_EQ(a.typical_p, b.typical_p);
  EXPECT_EQ(a.top_n_sigma, b.top_n_sigma);
  EXPECT_EQ(a.xtc_probability, b.xtc_probability);
  EXPECT_EQ(a.xtc_threshold, b.xtc_threshold);
  EXPECT_EQ(a.prompt_logprobs, b.prompt_logprobs);
  ASSERT_EQ(a.logits.has_value(), b.logits.has_value());
  if (a.logits) {
    EXPECT_EQ(a.logits->repetition_penalty, b.logits->repetition_penalty);
    EXPECT_EQ(a.logits->frequency_penalty, b.logits->frequency_penalty);
    EXPECT_EQ(a.logits->presence_penalty, b.logits->presence_penalty);
    EXPECT_EQ(a.logits->logit_bias, b.logits->logit_bias);
    EXPECT_EQ(a.logits->allowed, b.logits->allowed);
    EXPECT_EQ(a.logits->bad_words, b.logits->bad_words);
    EXPECT_EQ(a.logits->dry_multiplier, b.logits->dry_multiplier);
    EXPECT_EQ(a.logits->dry_base, b.logits->dry_base);
    EXPECT_EQ(a.logits->dry_allowed_length, b.logits->dry_allowed_length);
    EXPECT_EQ(a.logits->dry_range, b.logits->dry_range);
    EXPECT_EQ(a.logits->dry_breakers, b.logits->dry_breakers);
  }
  ASSERT_EQ(a.logprobs.has_value(), b.logprobs.has_value());
  if (a.logprobs) {
    EXPECT_EQ(a.logprobs->num_top, b.logprobs->num_top);
    EXPECT_EQ(a.logprobs->ids, b.logprobs->ids);
  }
}

void ExpectEqual(const StepPlan& a, const StepPlan& b) {
  EXPECT_EQ(a.step_id, b.step_id);
  EXPECT_EQ(a.removed, b.removed);
  EXPECT_EQ(a.total_tokens, b.total_tokens);
  ASSERT_EQ(a.added.size(), b.added.size());
  for (size_t i = 0; i < a.added.size(); ++i) {
    const NewSequence &x = a.added[i], &y = b.added[i];
    EXPECT_EQ(x.id, y.id);
    EXPECT_EQ(x.tokens, y.tokens);
    EXPECT_EQ(x.num_prompt_tokens, y.num_prompt_tokens);
    EXPECT_EQ(x.num_computed_tokens, y.num_computed_tokens);
    EXPECT_EQ(x.block_ids, y.block_ids);
    EXPECT_EQ(x.repeats_last, y.repeats_last);
    EXPECT_EQ(std::bit_cast<uint32_t>(x.sampling.temperature), std::bit_cast<uint32_t>(y.sampling.temperature));
    EXPECT_EQ(x.sampling.top_p, y.sampling.top_p);
    EXPECT_EQ(x.sampling.top_k, y.sampling.top_k);
    EXPECT_EQ(x.sampling.min_p, y.sampling.min_p);
    EXPECT_EQ(x.sampling.seed, y.sampling.seed);
    EXPECT_EQ(x.sampling.min_tokens, y.sampling.min_tokens);
    EXPECT_EQ(x.sampling.banned_until_min, y.sampling.banned_until_min);
    ExpectEqual(x.sampling, y.sampling);
  }
  ASSERT_EQ(a.diffs.size(), b.diffs.size());
  for (size_t i = 0; i < a.diffs.size(); ++i) {
    EXPECT_EQ(a.diffs[i].id, b.diffs[i].id);
    EXPECT_EQ(a.diffs[i].num_computed_tokens, b.diffs[i].num_computed_tokens);
    EXPECT_EQ(a.diffs[i].new_block_ids, b.diffs[i].new_block_ids);
  }
  ASSERT_EQ(a.rows.size(), b.rows.size());
  for (size_t i = 0; i < a.rows.size(); ++i) {
    EXPECT_EQ(a.rows[i].id, b.rows[i].id);
    EXPECT_EQ(a.rows[i].num_tokens, b.rows[i].num_tokens);
    EXPECT_EQ(a.rows[i].sample, b.rows[i].sample);
  }
}

// Puts the right checksum on a message whose payload was changed, so that the decoder's own checks meet it.
std::string Sealed(std::string message) {
  const uint64_t sum = StepChecksum(std::string_view(message).substr(kStepHeaderBytes));
  for (int i = 0; i < 8; ++i) message[8 + i] = static_cast<char>(sum >> (8 * i));
  return message;
}

TEST(StepCodec, PlanRoundTrip) {
  const auto decoded = DecodeStepPlan(EncodeStepPlan(SamplePlan()));
  ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
  ExpectEqual(decoded.value(), SamplePlan());
  const auto empty = DecodeStepPlan(EncodeStepPlan(StepPlan{}));
  ASSERT_TRUE(empty.ok());
  ExpectEqual(empty.value(), StepPlan{});
}

TEST(StepCodec, ResultRoundTrip) {
  const auto decoded = DecodeStepResult(EncodeStepResult(SampleResult()));
  ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
  EXPECT_EQ(decoded.value().step_id, 3u);
  EXPECT_EQ(decoded.value().status.code(), StatusCode::kInternal);
  EXPECT_EQ(decoded.value().status.message(), "device \xC3\xA9 lost");
  ASSERT_EQ(decoded.value().rows.size(), 3u);
  EXPECT_EQ(decoded.value().rows[2].id, 6u);
  EXPECT_EQ(decoded.value().rows[2].tokens, (std::vector<TokenId>{-1, 7, 8}));
  EXPECT_EQ(decoded.value().rows[0].logprobs, SampleResult().rows[0].logprobs);
  ASSERT_EQ(decoded.value().prompt_logprobs.size(), 1u);
  EXPECT_EQ(decoded.value().prompt_logprobs[0].id, 9u);
  EXPECT_EQ(decoded.value().prompt_logprobs[0].first_position, 1);
  EXPECT_EQ(decoded.value().prompt_logprobs[0].positions, SampleResult().prompt_logprobs[0].positions);
}

TEST(StepCodec, BytesAreLittleEndian) {
  StepResult result;
  result.step_id = 0x0102;
  const std::string bytes = EncodeStepResult(result);
  // Header 16, step_id 8, status code 4, message count 4, row count 4, count of prompt logprobs 4.
  ASSERT_EQ(bytes.size(), 40u);
  EXPECT_EQ(bytes.substr(0, 8), std::string("FLLP\x03\0\x02\0", 8));
  EXPECT_EQ(bytes.substr(16), std::string("\x02\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 24));
}

TEST(StepCodec, RefusesEveryTruncation) {
  const std::string plan = EncodeStepPlan(SamplePlan()), result = EncodeStepResult(SampleResult());
  for (size_t n = 0; n < plan.size(); ++n) {
    const std::string cut = plan.substr(0, n);
    EXPECT_EQ(DecodeStepPlan(cut).status().code(), StatusCode::kDataLoss) << n;
    if (n >= kStepHeaderBytes) {
      EXPECT_EQ(DecodeStepPlan(Sealed(cut)).status().code(), StatusCode::kDataLoss) << n;
    }
  }
  for (size_t n = 0; n < result.size(); ++n) {
    const std::string cut = result.substr(0, n);
    EXPECT_EQ(DecodeStepResult(cut).status().code(), StatusCode::kDataLoss) << n;
    if (n >= kStepHeaderBytes) {
      EXPECT_EQ(DecodeStepResult(Sealed(cut)).status().code(), StatusCode::kDataLoss) << n;
    }
  }
  EXPECT_EQ(DecodeStepPlan(Sealed(plan + '\0')).status().code(), StatusCode::kDataLoss);
}

TEST(StepCodec, RefusesEverySingleBitFlip) {
  const std::string good = EncodeStepPlan(SamplePlan());
  for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_EQ(DecodeStepPlan(bad).status().code(), StatusCode::kDataLoss) << "bit " << bit;
  }
}

TEST(StepCodec, RefusesTheOtherKindAndVersion) {
  EXPECT_EQ(DecodeStepResult(EncodeStepPlan(SamplePlan())).status().message(), "step message: kind must be 2, got 1");
  EXPECT_EQ(DecodeStepPlan(EncodeStepResult(SampleResult())).status().message(), "step message: kind must be 1, got 2");
  std::string bytes = EncodeStepPlan(SamplePlan());
  bytes[4] = 1;
  EXPECT_EQ(DecodeStepPlan(bytes).status().message(), "step message: version must be 3, got 1");
}

// With the checksum put right, changed bytes must decode to something or be refused, never read or allocate beyond.
TEST(StepCodec, SurvivesCorruptPayloadsUnderAValidChecksum) {
  std::mt19937 rng(3);
  const std::string plan = EncodeStepPlan(SamplePlan()), result = EncodeStepResult(SampleResult());
  int refused = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string bad = round % 2 ? plan : result;
    for (size_t i = 0, n = 1 + rng() % 4; i < n; ++i) {
      bad[kStepHeaderBytes + rng() % (bad.size() - kStepHeaderBytes)] = static_cast<char>(rng());
    }
    bad = Sealed(bad);
    if (round % 2) {
      const auto decoded = DecodeStepPlan(bad);
      // What is accepted is a message of its own: it encodes to the very bytes it came from.
      if (decoded.ok()) {
        EXPECT_EQ(EncodeStepPlan(decoded.value()), bad);
      }
      refused += !decoded.ok();
    } else {
      const auto decoded = DecodeStepResult(bad);
      if (decoded.ok()) {
        EXPECT_EQ(EncodeStepResult(decoded.value()), bad);
      }
      refused += !decoded.ok();
    }
  }
  EXPECT_GT(refused, 500);
}

TEST(StepCodec, HugeCountsAreRefusedBeforeAllocation) {
  std::string bytes = EncodeStepPlan(StepPlan{});
  for (size_t at = kStepHeaderBytes + 8; at + 4 < bytes.size(); at += 4) {
    std::string bad = bytes;
    for (int i = 0; i < 4; ++i) bad[at + i] = '\xFF';
    EXPECT_EQ(DecodeStepPlan(Sealed(bad)).status().code(), StatusCode::kDataLoss) << at;
  }
}

}  // namespace
}  // namespace fastllm
