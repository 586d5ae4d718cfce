// process_logits and logprobs on one row, and what they should give, in float64.
#pragma once

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "ops/contract/logits.h"
#include "ops/contract/logprobs.h"
#include "support.h"

namespace fastllm::ops {

inline constexpr float kInf = std::numeric_limits<float>::infinity();

template <typename T>
List<T> ListOf(const std::vector<T>& v) {
  return {v.data(), static_cast<int32_t>(v.size())};
}

inline std::vector<float> ProcessAlone(ProcessLogitsFn fn, std::vector<float> logits, const LogitsRow& row) {
  ProcessLogitsParams p;
  p.logits = logits.data();
  p.rows = &row;
  p.logits_stride = static_cast<int64_t>(logits.size());
  p.num_rows = 1;
  p.vocab = static_cast<int32_t>(logits.size());
  fn(p, {});
  return logits;
}

// DRY by its definition: every earlier place, every length. Token -> the longest match before it.
inline std::map<int32_t, int> DryMatches(const DryRow& row) {
  std::vector<int32_t> h(row.history.data, row.history.data + row.history.size);
  if (row.range > 0 && static_cast<size_t>(row.range) < h.size()) h.erase(h.begin(), h.end() - row.range);
  const std::set<int32_t> breakers(row.breakers.data, row.breakers.data + row.breakers.size);
  std::map<int32_t, int> longest;
  const int n = static_cast<int>(h.size());
  for (int end = 0; end + 1 < n; ++end) {
    int length = 0;
    while (length <= end && h[end - length] == h[n - 1 - length] && !breakers.contains(h[end - length])) ++length;
    const int32_t next = h[end + 1];
    if (length >= std::max(1, row.allowed_length) && !breakers.contains(next)) {
      longest[next] = std::max(longest[next], length);
    }
  }
  return longest;
}

// The processors one after the other, in the order of the contract.
inline std::vector<double> ProcessReference(const std::vector<float>& logits, const LogitsRow& row) {
  std::vector<double> x(logits.begin(), logits.end());
  const auto n = static_cast<int32_t>(x.size());
  const double none = -std::numeric_limits<double>::infinity();
  const auto inside = [n](int32_t id) { return 0 <= id && id < n; };
  for (int32_t t = 0; t < n && row.bitmask != nullptr; ++t) {
    if ((row.bitmask[t / 32] & static_cast<int32_t>(1u << (t % 32))) == 0) x[t] = none;
  }
  if (row.allowed.data != nullptr) {
    const std::set<int32_t> allowed(row.allowed.data, row.allowed.data + row.allowed.size);
    for (int32_t t = 0; t < n; ++t) {
      if (!allowed.contains(t)) x[t] = none;
    }
  }
  for (const auto& bans : {row.bad_words, row.min_tokens}) {
    for (int32_t i = 0; i < bans.size; ++i) {
      if (inside(bans.data[i])) x[bans.data[i]] = none;
    }
  }
  for (int32_t i = 0; i < row.logit_bias.size; ++i) {
    const TokenBias& b = row.logit_bias.data[i];
    if (inside(b.id)) x[b.id] += b.bias;
  }
  for (int32_t i = 0; i < row.counts.size; ++i) {
    const TokenCount& c = row.counts.data[i];
    if (!inside(c.id)) continue;
    double& v = x[c.id];
    const double r = row.repetition_penalty;
    if (c.in_prompt || c.output_count > 0) v = v > 0 ? v / r : v * r;
    v -= static_cast<double>(row.frequency_penalty) * c.output_count;
    if (c.output_count > 0) v -= row.presence_penalty;
  }
  if (row.dry.multiplier != 0) {
    for (const auto& [token, length] : DryMatches(row.dry)) {
      if (inside(token)) x[token] -= row.dry.multiplier * std::pow(row.dry.base, length - row.dry.allowed_length);
    }
  }
  return x;
}

// Equal infinities, or within tolerance of 1 + |want|.
inline void ExpectNear(const std::vector<float>& got, const std::vector<double>& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isinf(want[i])) {
      EXPECT_EQ(static_cast<double>(got[i]), want[i]) << "at " << i;
    } else {
      EXPECT_LE(std::abs(got[i] - want[i]), tolerance * (1 + std::abs(want[i]))) << "at " << i;
    }
  }
}

}  // namespace fastllm::ops
