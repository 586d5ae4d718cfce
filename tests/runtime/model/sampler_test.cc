// The sampler on random logits: what rows of all kinds get is what each gets alone, and log probabilities are those of
// a plain softmax in float64.
#include "runtime/sample/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "runtime/tensor/tensors.h"

namespace fastllm::runtime {
namespace {

constexpr int32_t kVocab = 700;
const ops::OpContext kContext{nullptr, 2};

Sampler MakeSampler(LogprobsMode mode = LogprobsMode::kRawLogprobs) {
  auto s = Sampler::Create(ops::BuiltinOps(), ops::Device::kCpu, kVocab, 64, mode);
  EXPECT_TRUE(s.ok()) << s.status().ToString();
  return std::move(s).value();
}

std::vector<float> RandomRow(uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> d(0.0f, 3.0f);
  std::vector<float> x(kVocab);
  for (float& v : x) v = d(rng);
  return x;
}

struct Sequence {
  SamplingSpec spec;
  std::vector<TokenId> tokens;
  int32_t num_prompt_tokens = 0;
  std::unique_ptr<LogitsState> state;
  std::vector<float> logits;
};

// Every fourth has no feature; the others have some of everything.
Sequence MakeSequence(uint32_t i) {
  std::mt19937 rng(i * 31 + 7);
  Sequence s;
  for (int k = 0; k < 30; ++k) s.tokens.push_back(static_cast<TokenId>(rng() % kVocab));
  s.num_prompt_tokens = 20;
  s.spec.temperature = i % 3 == 0 ? 0.0f : 0.8f;
  s.spec.seed = i;
  s.logits = RandomRow(i);
  if (i % 4 == 0) return s;
  if (i % 2 == 0) s.spec.top_p = 0.9f;
  if (i % 5 == 0) s.spec.typical_p = 0.8f;
  if (i % 7 == 0) s.spec.top_n_sigma = 1.5f;
  if (i % 3 == 1) {
    LogitsSpec& l = s.spec.logits.emplace();
    l.repetition_penalty = 1.2f;
    l.frequency_penalty = 0.4f;
    l.presence_penalty = 0.3f;
    l.logit_bias = {{s.tokens[3], 4.0f}, {11, -3.0f}};
    l.bad_words = {{5}, {s.tokens.back(), 6}};
    l.dry_multiplier = 0.8f;
    s.state = std::make_unique<LogitsState>(l, s.tokens, s.num_prompt_tokens);
  }
  if (i % 6 != 5) s.spec.logprobs = LogprobsSpec{static_cast<int32_t>(i % 6), {1, 2, s.tokens[0]}};
  if (i % 9 == 0) {
    s.spec.min_tokens = 50;
    s.spec.banned_until_min = {0, 1, 2};
  }
  return s;
}

struct Drawn {
  std::vector<TokenId> tokens;
  std::vector<PositionLogprobs> logprobs;
};

Drawn Sampled(Sampler& sampler, const std::vector<const Sequence*>& rows) {
  sampler.Clear();
  for (const Sequence* s : rows) sampler.Add({1, &s->spec, &s->tokens, s->num_prompt_tokens, s->state.get()});
  const std::vector<int32_t>& order = sampler.Arrange();
  const at::Tensor logits = Empty({static_cast<int64_t>(rows.size()), kVocab}, at::kFloat);
  for (size_t i = 0; i < rows.size(); ++i) {
    std::ranges::copy(rows[order[i]]->logits, DataOf<float>(logits) + i * kVocab);
  }
  Drawn out;
  out.tokens = sampler.Run(logits, kContext);
  for (size_t i = 0; i < rows.size(); ++i) {
    out.logprobs.push_back(sampler.has_logprobs(i) ? sampler.logprobs(i) : PositionLogprobs());
  }
  return out;
}

std::vector<double> LogSoftmax(const std::vector<double>& x) {
  const double max = *std::ranges::max_element(x);
  double sum = 0;
  for (const double v : x) sum += std::exp(v - max);
  std::vector<double> out(x.size());
  for (size_t i = 0; i < x.size(); ++i) out[i] = x[i] - max - std::log(sum);
  return out;
}

class SamplerModes : public ::testing::TestWithParam<LogprobsMode> {};

TEST_P(SamplerModes, ABatchOfAllKindsGivesWhatEachGivesAlone) {
  std::vector<Sequence> sequences;
  for (uint32_t i = 0; i < 60; ++i) sequences.push_back(MakeSequence(i));
  std::vector<const Sequence*> rows;
  for (const Sequence& s : sequences) rows.push_back(&s);
  Sampler sampler = MakeSampler(GetParam());
  const Drawn together = Sampled(sampler, rows);
  for (size_t i = 0; i < rows.size(); ++i) {
    const Drawn alone = Sampled(sampler, {rows[i]});
    EXPECT_EQ(together.tokens[i], alone.tokens[0]) << i;
    EXPECT_EQ(together.logprobs[i], alone.logprobs[0]) << i;
    EXPECT_EQ(together.logprobs[i].empty(), !rows[i]->spec.logprobs.has_value()) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(All, SamplerModes,
                         ::testing::Values(LogprobsMode::kRawLogprobs, LogprobsMode::kProcessedLogprobs,
                                           LogprobsMode::kRawLogits, LogprobsMode::kProcessedLogits));

// Whatever is done to the logits, raw logprobs are of the logits that came in.
TEST(Sampler, RawLogprobsAreOfTheModelsOwnLogits) {
  Sampler sampler = MakeSampler();
  for (uint32_t i = 0; i < 40; ++i) {
    const Sequence s = MakeSequence(i);
    if (!s.spec.logprobs) continue;
    const Drawn got = Sampled(sampler, {&s});
    const std::vector<double> want = LogSoftmax({s.logits.begin(), s.logits.end()});
    const PositionLogprobs& entries = got.logprobs[0];
    ASSERT_FALSE(entries.empty());
    EXPECT_EQ(entries[0].token_id, got.tokens[0]);
    const auto above = std::ranges::count_if(want, [&](double v) { return v > want[got.tokens[0]]; });
    EXPECT_EQ(entries[0].rank, 1 + above);
    for (const TokenLogprob& e : entries) EXPECT_NEAR(e.logprob, want[e.token_id], 2e-6) << i;
    std::vector<TokenId> best(kVocab);
    for (int32_t t = 0; t < kVocab; ++t) best[t] = t;
    std::ranges::sort(best, [&](TokenId a, TokenId b) { return want[a] > want[b]; });
    for (int32_t k = 0; k < s.spec.logprobs->num_top; ++k) {
      const auto it = std::ranges::find(entries, best[k], &TokenLogprob::token_id);
      ASSERT_NE(it, entries.end()) << "top " << k << " of sequence " << i;
      EXPECT_EQ(it->rank, k + 1);
    }
    for (const TokenId id : s.spec.logprobs->ids) {
      EXPECT_EQ(std::ranges::count(entries, id, &TokenLogprob::token_id), 1);
    }
  }
}

// Penalties, bias, temperature and top_k by hand.
TEST(Sampler, ProcessedLogprobsAreOfWhatIsDrawnFrom) {
  Sequence s;
  s.tokens = {3, 4, 4, 5, 5, 5};
  s.num_prompt_tokens = 2;
  s.spec.temperature = 0.5f;
  s.spec.top_k = 4;
  LogitsSpec& l = s.spec.logits.emplace();
  l.repetition_penalty = 2.0f;
  l.frequency_penalty = 0.25f;
  l.presence_penalty = 0.5f;
  l.logit_bias = {{7, 3.0f}};
  s.state = std::make_unique<LogitsState>(l, s.tokens, s.num_prompt_tokens);
  s.spec.logprobs = LogprobsSpec{6, {}};
  s.logits.assign(kVocab, -20.0f);
  const std::vector<std::pair<TokenId, float>> given = {{3, 6.0f}, {4, 6.0f}, {5, 7.0f}, {6, 1.0f}, {7, 0.5f}};
  for (const auto& [id, x] : given) s.logits[id] = x;
  // 3: 6 / 2; 4: 6 / 2 - 0.25 - 0.5; 5: 7 / 2 - 3 * 0.25 - 0.5; 7: 0.5 + 3.
  const std::vector<std::pair<TokenId, double>> kept = {{7, 3.5}, {3, 3.0}, {4, 2.25}, {5, 2.25}};
  double sum = 0;
  for (const auto& [id, x] : kept) sum += std::exp(x / 0.5);
  for (const LogprobsMode mode : {LogprobsMode::kProcessedLogprobs, LogprobsMode::kProcessedLogits}) {
    Sampler sampler = MakeSampler(mode);
    const PositionLogprobs entries = Sampled(sampler, {&s}).logprobs[0];
    for (size_t k = 0; k < kept.size(); ++k) {
      const auto it = std::ranges::find(entries, kept[k].first, &TokenLogprob::token_id);
      ASSERT_NE(it, entries.end());
      const double x = kept[k].second / 0.5;
      EXPECT_NEAR(it->logprob, mode == LogprobsMode::kProcessedLogits ? x : x - std::log(sum), 1e-5);
    }
    const auto cut = std::ranges::find(entries, 0, &TokenLogprob::token_id);
    ASSERT_NE(cut, entries.end()) << "the fifth place is the first of those that top_k left out";
    EXPECT_EQ(cut->logprob, -std::numeric_limits<float>::infinity());
  }
  Sampler raw = MakeSampler(LogprobsMode::kRawLogits);
  const PositionLogprobs entries = Sampled(raw, {&s}).logprobs[0];
  ASSERT_FALSE(entries.empty());
  for (const TokenLogprob& e : entries) EXPECT_EQ(e.logprob, s.logits[e.token_id]);
}

TEST(Sampler, ARowWithoutAUsableLogitHasNeitherTokenNorLogprobs) {
  Sequence broken = MakeSequence(1), sound = MakeSequence(3);
  broken.spec.logprobs = sound.spec.logprobs = LogprobsSpec{2, {}};
  broken.logits[100] = std::numeric_limits<float>::quiet_NaN();
  Sampler sampler = MakeSampler();
  const Drawn got = Sampled(sampler, {&broken, &sound});
  EXPECT_EQ(got.tokens[0], -1);
  EXPECT_TRUE(got.logprobs[0].empty());
  EXPECT_EQ(got.logprobs[1], Sampled(sampler, {&sound}).logprobs[0]);
}

// 500 rows that want all 700 tokens: more than one group.
TEST(LogprobReader, ManyRowsThatWantTheWholeVocabulary) {
  constexpr size_t kRows = 500;
  auto reader = LogprobReader::Create(ops::BuiltinOps(), ops::Device::kCpu, kVocab);
  ASSERT_TRUE(reader.ok());
  std::vector<float> logits;
  std::vector<LogprobQuestion> questions(kRows);
  for (size_t r = 0; r < kRows; ++r) {
    const std::vector<float> row = RandomRow(static_cast<uint32_t>(r));
    logits.insert(logits.end(), row.begin(), row.end());
    questions[r].token = static_cast<TokenId>(r % kVocab);
    questions[r].num_top = r % 50 == 7 ? 3 : -1;
  }
  std::vector<PositionLogprobs> answers(kRows);
  reader->Read(logits.data(), kVocab, questions, kContext, answers.data());
  for (size_t r = 0; r < kRows; ++r) {
    const std::vector<double> want = LogSoftmax({&logits[r * kVocab], &logits[r * kVocab] + kVocab});
    if (questions[r].num_top < 0) {
      ASSERT_EQ(answers[r].size(), static_cast<size_t>(kVocab)) << r;
    }
    EXPECT_EQ(answers[r][0].token_id, questions[r].token);
    for (const TokenLogprob& e : answers[r]) ASSERT_NEAR(e.logprob, want[e.token_id], 2e-6) << r;
  }
}

// Counts kept token by token are those of a state that is made anew, as after a preemption.
// Greedy rows of which nothing else is asked may be picked without the sampler; one row of another kind, and none may.
TEST(Sampler, LeavesGreedyTokensToTheCallerWhereNothingElseIsAsked) {
  const auto leaves = [](const auto& change) {
    Sampler sampler = MakeSampler();
    std::vector<Sequence> sequences(3);
    for (Sequence& s : sequences) s.tokens = {1, 2, 3}, s.num_prompt_tokens = 2;
    change(sequences[1]);
    for (size_t i = 0; i < sequences.size(); ++i) {
      Sequence& s = sequences[i];
      if (s.spec.logits) s.state = std::make_unique<LogitsState>(*s.spec.logits, s.tokens, s.num_prompt_tokens);
      sampler.Add({static_cast<RequestId>(i), &s.spec, &s.tokens, s.num_prompt_tokens, s.state.get()});
    }
    sampler.Arrange();
    const std::vector<int32_t>* const tokens = sampler.GreedyTokens();
    return tokens != nullptr && tokens->size() == sequences.size();
  };
  EXPECT_TRUE(leaves([](Sequence&) {}));
  EXPECT_FALSE(leaves([](Sequence& s) { s.spec.temperature = 0.5f; }));
  EXPECT_FALSE(leaves([](Sequence& s) { s.spec.logprobs.emplace(); }));
  EXPECT_FALSE(leaves([](Sequence& s) { s.spec.logits.emplace().repetition_penalty = 1.2f; }));
  EXPECT_FALSE(leaves([](Sequence& s) { s.spec.min_tokens = 4, s.spec.banned_until_min = {5}; }));
  EXPECT_TRUE(leaves([](Sequence& s) { s.spec.min_tokens = 1, s.spec.banned_until_min = {5}; }));  // over
}

TEST(LogitsState, StepByStepAndAnewAreTheSame) {
  LogitsSpec spec;
  spec.frequency_penalty = 1.0f;
  std::vector<TokenId> tokens = {1, 2, 2, 3};
  LogitsState state(spec, tokens, 4);
  for (const TokenId t : {3, 7, 7, 1, 7}) {
    tokens.push_back(t);
    state.Append(t);
  }
  LogitsState anew(spec, tokens, 4);
  const auto counts = [&](LogitsState& s) {
    const ops::LogitsRow row = s.Row(spec, tokens, 4);
    std::vector<std::tuple<int32_t, int32_t, bool>> out;
    for (int32_t i = 0; i < row.counts.size; ++i) {
      out.emplace_back(row.counts.data[i].id, row.counts.data[i].output_count, row.counts.data[i].in_prompt);
    }
    std::ranges::sort(out);
    return out;
  };
  EXPECT_EQ(counts(state), counts(anew));
  EXPECT_EQ(counts(state),
            (std::vector<std::tuple<int32_t, int32_t, bool>>{{1, 1, true}, {2, 0, true}, {3, 1, true}, {7, 3, false}}));
}

TEST(LogitsState, BadWordsCompareTheOutputAlone) {
  LogitsSpec spec;
  spec.bad_words = {{5}, {1, 6}, {1, 2, 7}, {9, 1, 2, 8}};
  const auto banned = [&](const std::vector<TokenId>& tokens, int32_t num_prompt) {
    LogitsState state(spec, tokens, num_prompt);
    const ops::LogitsRow row = state.Row(spec, tokens, num_prompt);
    return std::vector<int32_t>(row.bad_words.data, row.bad_words.data + row.bad_words.size);
  };
  EXPECT_EQ(banned({9, 1, 2}, 3), (std::vector<int32_t>{5}));
  EXPECT_EQ(banned({9, 1, 2}, 1), (std::vector<int32_t>{5, 7}));
  EXPECT_EQ(banned({9, 1, 2}, 0), (std::vector<int32_t>{5, 7, 8}));
  EXPECT_EQ(banned({9, 1}, 0), (std::vector<int32_t>{5, 6}));
}

}  // namespace
}  // namespace fastllm::runtime
