// Against the logits processors of transformers 5.24: data/make_transformers_cases.py wrote their results.
#include <cmath>

#include "logits_support.h"
#include "sample_support.h"

namespace fastllm::ops {
namespace {

struct Case {
  std::string name;
  float parameter;
  float temperature;
  std::vector<int32_t> ids;
  std::vector<float> in, out;
};

const std::vector<Case>& Cases() {
  static const std::vector<Case> cases = {
#include "data/transformers_cases.inc"
  };
  return cases;
}

using Transformers = ArmTest;

TEST_P(Transformers, ProcessorsAgree) {
  const auto fn = Get<ProcessLogitsFn>(OpId::kProcessLogits);
  int compared = 0;
  for (const Case& c : Cases()) {
    LogitsRow row;
    std::vector<TokenCount> counts;
    const std::vector<TokenBias> bias = {{2, 1.5f}, {7, -3.25f}, {40, 0.75f}};
    if (c.name == "repetition") {
      for (const int32_t id : std::set<int32_t>(c.ids.begin(), c.ids.end()))
        counts.push_back({id, id % 3, id % 3 == 0});
      row.repetition_penalty = c.parameter;
      row.counts = ListOf(counts);
    } else if (c.name == "bias") {
      row.logit_bias = ListOf(bias);
    } else if (c.name == "ban") {
      row.bad_words = ListOf(c.ids);
    } else if (c.name == "allowed") {
      row.allowed = ListOf(c.ids);
    } else {
      continue;
    }
    SCOPED_TRACE(c.name);
    ExpectNear(ProcessAlone(fn, c.in, row), {c.out.begin(), c.out.end()}, 2e-7);
    ++compared;
  }
  EXPECT_EQ(compared, 7);
}

// The warpers leave logits / T of the survivors; ours leaves the logits and hands T to the logprobs.
TEST_P(Transformers, FiltersAgreeAndSoDoTheirLogprobs) {
  const auto sample = Get<SampleFn>(OpId::kSample);
  const auto logprobs = Get<LogprobsFn>(OpId::kLogprobs);
  int compared = 0;
  for (const Case& c : Cases()) {
    SampleRow row;
    row.temperature = c.temperature;
    row.write_filtered = true;
    if (c.name == "top_k") row.top_k = static_cast<int32_t>(c.parameter);
    if (c.name == "top_p") row.top_p = c.parameter;
    if (c.name == "min_p") row.min_p = c.parameter;
    if (c.name == "typical_p") row.typical_p = c.parameter;
    if (row.top_k == 0 && row.top_p == 1 && row.min_p == 0 && row.typical_p == 1) continue;
    SCOPED_TRACE(testing::Message() << c.name << " temperature " << c.temperature);
    const auto filtered = Filtered(sample, c.in, row);
    double sum = 0;
    std::vector<double> want;
    for (size_t i = 0; i < c.out.size(); ++i) {
      EXPECT_EQ(filtered[i] == -kInf, c.out[i] == -kInf) << "token " << i;
      sum += std::exp(static_cast<double>(c.out[i]));
    }
    for (const float v : c.out) want.push_back(v - std::log(sum));
    std::vector<int32_t> ids(c.in.size());
    std::iota(ids.begin(), ids.end(), 0);
    std::vector<float> got(c.in.size());
    const LogprobsRow ask = {c.temperature, -1, 0, ListOf(ids), got.data()};
    LogprobsParams p;
    p.logits = filtered.data();
    p.rows = &ask;
    p.num_rows = 1;
    p.vocab = static_cast<int32_t>(filtered.size());
    logprobs(p, {});
    ExpectNear(got, want, 1e-6);
    ++compared;
  }
  EXPECT_EQ(compared, 12);
}

FASTLLM_INSTANTIATE_ARMS(Transformers);

}  // namespace
}  // namespace fastllm::ops
