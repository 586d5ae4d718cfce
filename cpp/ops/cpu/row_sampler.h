// How one row of logits becomes a token, or the set of tokens that filters leave. Rules in cpp/docs/ops.md.
#pragma once

#include <vector>

#include "ops/contract/sampling.h"
#include "ops/cpu/select.h"

namespace fastllm::ops::cpu {

// Memory of one thread, sized for a vocabulary before rows are sampled; nothing grows after that.
struct SampleScratch {
  std::vector<float> row;  // the logits with bans applied
  std::vector<float> block_max;
  std::vector<float> values;  // gathered
  std::vector<int32_t> ids;
  std::vector<float> weights;
  std::vector<Candidate> candidates;
  std::vector<Candidate> order;  // candidates being selected among; vocab elements long, the front in use

  void Reserve(size_t vocab);
};

// One row that is not greedy. view.max is above -inf, and no logit is NaN.
class RowSampler {
 public:
  RowSampler(const Kernels& k, const SampleRow& row, const RowView& view, SampleScratch& scratch);

  // filtered, unless null, takes the logits with -inf for what was left out; it may be the row itself.
  int32_t Draw(float* filtered);

 private:
  bool HasFilter() const;
  // The first candidates: enough for every token that survives. Returns the mass that top_p takes its share of, or 0
  // when that is the mass of the candidates left by the filters before it.
  double GatherFirst();
  void Gather(float threshold);
  void GatherTopK();
  void GatherTopP(double total);
  float MinPThreshold() const;
  float SigmaThreshold() const;

  void CutAfter(const Candidate& last);
  void KeepTypical();
  void DropTopChoices();
  double Weight() const;
  double BlockSums();
  int32_t DrawFromAll(double u);
  int32_t DrawFromCandidates(double u) const;
  void WriteFiltered(float* filtered) const;

  const Kernels& k_;
  const SampleRow& row_;
  const RowView view_;
  float inv_t_;
  bool limit_k_;
  bool drop_top_;  // XTC strikes this time
  SampleScratch& s_;
};

}  // namespace fastllm::ops::cpu
