// Selection within a row of logits without sorting it: what the sampler and the logprobs share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/cpu/kernels.h"

namespace fastllm::ops::cpu {

// One row and what the first pass over it found.
struct RowView {
  const float* x;
  int32_t n;
  MaxResult max;
  const float* block_max;  // of each kMaxBlock logits
};

inline int64_t NumBlocks(int64_t n) { return (n + kMaxBlock - 1) / kMaxBlock; }

struct Candidate {
  float value;
  int32_t id;
  float weight;
};

// The order of tokens: higher logit first, then lower id.
inline bool Before(const Candidate& a, const Candidate& b) {
  return a.value > b.value || (a.value == b.value && a.id < b.id);
}

// Logits >= threshold and their ids, in id order; returns how many. Only blocks that hold such logits are read.
// Both outputs hold row.n elements.
int64_t GatherAbove(const Kernels& k, const RowView& row, float threshold, float* values, int32_t* ids);

// Of the row's logits, how many are > threshold.
int64_t CountAbove(const Kernels& k, const RowView& row, float threshold);

// A threshold that at least `count` logits reach and, as a rule, few more: the count-th largest of the blocks' maxima.
// -inf when the row has fewer blocks than that. scratch: NumBlocks(n) elements.
float TopBound(const RowView& row, int64_t count, float* scratch);

// The last of the shortest run of candidates in order, at least one long, whose weights reach target in float64 (the
// last of all where none does). Linear in the candidates. order: scratch, at least as long as candidates.
Candidate LastWithin(const std::vector<Candidate>& candidates, double target, std::vector<Candidate>& order);
// The same by count: the count-th in order; 1 <= count <= candidates.size().
Candidate NthInOrder(const std::vector<Candidate>& candidates, int64_t count, std::vector<Candidate>& order);

}  // namespace fastllm::ops::cpu
