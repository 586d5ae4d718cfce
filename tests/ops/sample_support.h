// One row of sampling at a time, and the exact distribution that it should have, by sorting in float64.
#pragma once

#include <algorithm>
#include <numeric>

#include "ops/contract/sampling.h"
#include "support.h"

namespace fastllm::ops {

inline int32_t SampleRowAlone(SampleFn fn, const std::vector<float>& logits, const SampleRow& row,
                              const std::vector<int32_t>& bans = {}, float* filtered = nullptr) {
  SampleParams p;
  int32_t token = -2;
  const int32_t ban_start[] = {0, static_cast<int32_t>(bans.size())};
  p.logits = logits.data();
  p.tokens = &token;
  p.rows = &row;
  p.ban_ids = bans.data();
  p.ban_start = ban_start;
  p.logits_stride = static_cast<int64_t>(logits.size());
  p.num_rows = 1;
  p.vocab = static_cast<int32_t>(logits.size());
  p.filtered = filtered;
  fn(p, {});
  return token;
}

// What SampleParams::filtered takes of a row with write_filtered.
inline std::vector<float> Filtered(SampleFn fn, const std::vector<float>& logits, const SampleRow& row,
                                   const std::vector<int32_t>& bans = {}) {
  std::vector<float> out(logits.size(), std::nanf(""));
  SampleRowAlone(fn, logits, row, bans, out.data());
  return out;
}

// The shortest prefix of the order, at least one long, whose weights reach mass.
template <typename Weight>
void KeepMass(std::vector<int32_t>& order, double mass, Weight weight) {
  double sum = 0;
  size_t keep = 0;
  while (keep < order.size() && (keep == 0 || sum < mass)) sum += weight(order[keep++]);
  order.resize(keep);
}

// Those whose surprise is nearest the entropy, up to the mass typical_p.
template <typename Weight>
void KeepTypical(std::vector<int32_t>& order, double typical_p, Weight weight) {
  double total = 0, entropy = 0;
  for (const int32_t id : order) total += weight(id);
  for (const int32_t id : order) {
    const double p = weight(id) / total;
    if (p > 0) entropy -= p * std::log(p);
  }
  // Float32, as two tokens whose distance differs by rounding alone are the same.
  const auto distance = [&](int32_t id) {
    return static_cast<float>(std::abs(-std::log(weight(id) / total) - entropy));
  };
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return distance(a) < distance(b) || (distance(a) == distance(b) && a < b);
  });
  KeepMass(order, typical_p * total, weight);
}

// ban -> temperature -> top_n_sigma -> min_p -> top_k -> typical_p -> top_p -> XTC if it strikes, ties to the lower id.
// Probabilities of every token.
inline std::vector<double> ExactDistribution(const std::vector<float>& logits, const SampleRow& row,
                                             const std::vector<int32_t>& bans = {}, bool xtc_strikes = false) {
  std::vector<int32_t> order;
  for (int32_t i = 0; i < static_cast<int32_t>(logits.size()); ++i) {
    if (std::find(bans.begin(), bans.end(), i) == bans.end()) order.push_back(i);
  }
  const auto by_logit = [&](int32_t a, int32_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
  };
  std::sort(order.begin(), order.end(), by_logit);
  std::erase_if(order, [&](int32_t id) { return std::isinf(logits[id]); });
  const double max = logits[order[0]];
  const auto weight = [&](int32_t id) { return std::exp((logits[id] - max) / row.temperature); };
  const auto mass = [&] {
    return std::accumulate(order.begin(), order.end(), 0.0, [&](double s, int32_t id) { return s + weight(id); });
  };
  if (row.top_n_sigma > 0) {
    double mean = 0, variance = 0;
    for (const int32_t id : order) mean += logits[id] / static_cast<double>(order.size());
    for (const int32_t id : order) variance += std::pow(logits[id] - mean, 2) / static_cast<double>(order.size());
    std::erase_if(order, [&](int32_t id) { return logits[id] < max - row.top_n_sigma * std::sqrt(variance); });
  }
  if (row.min_p > 0) std::erase_if(order, [&](int32_t id) { return weight(id) < row.min_p; });
  if (row.top_k > 0 && row.top_k < static_cast<int32_t>(order.size())) order.resize(row.top_k);
  if (row.typical_p < 1) KeepTypical(order, row.typical_p, weight);
  std::sort(order.begin(), order.end(), by_logit);
  if (row.top_p < 1) KeepMass(order, row.top_p * mass(), weight);
  if (xtc_strikes) {
    const double limit = row.xtc_threshold * mass();
    while (order.size() > 1 && weight(order[0]) >= limit && weight(order[1]) >= limit) order.erase(order.begin());
  }
  const double total = mass();
  std::vector<double> p(logits.size());
  for (const int32_t id : order) p[id] = weight(id) / total;
  return p;
}

}  // namespace fastllm::ops
