// One row of sampling at a time, and the exact distribution that it should have, by sorting in float64.
#pragma once

#include <algorithm>
#include <numeric>

#include "ops/contract/sampling.h"
#include "support.h"

namespace fastllm::ops {

inline int32_t SampleRowAlone(SampleFn fn, const std::vector<float>& logits, const SampleRow& row,
                              const std::vector<int32_t>& bans = {}) {
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
  fn(p, {});
  return token;
}

// ban -> temperature -> min_p -> top_k -> top_p, ties to the lower id. Probabilities of every token.
inline std::vector<double> ExactDistribution(const std::vector<float>& logits, const SampleRow& row,
                                             const std::vector<int32_t>& bans = {}) {
  std::vector<int32_t> order;
  for (int32_t i = 0; i < static_cast<int32_t>(logits.size()); ++i) {
    if (std::find(bans.begin(), bans.end(), i) == bans.end()) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  const double max = logits[order[0]];
  const auto weight = [&](int32_t id) { return std::exp((logits[id] - max) / row.temperature); };
  if (row.min_p > 0) std::erase_if(order, [&](int32_t id) { return weight(id) < row.min_p; });
  if (row.top_k > 0 && row.top_k < static_cast<int32_t>(order.size())) order.resize(row.top_k);
  double total = 0;
  for (const int32_t id : order) total += weight(id);
  if (row.top_p < 1) {
    double sum = 0;
    size_t keep = 0;
    while (keep < order.size() && (keep == 0 || sum < row.top_p * total)) sum += weight(order[keep++]);
    order.resize(keep);
    total = sum;
  }
  std::vector<double> p(logits.size());
  for (const int32_t id : order) p[id] = weight(id) / total;
  return p;
}

}  // namespace fastllm::ops
