// One call of paged_attention with everything that it needs on the device.
#pragma once

#include <vector>

#include "ops/contract/attention.h"
#include "ops/contract/attention_plan.h"
#include "support.h"

namespace fastllm::cuda_check {

struct Sequence {
  int query_len;
  int length;
};

struct AttentionShapeSpec {
  int q_heads = 8, kv_heads = 2, dim = 128, block_size = 16;
  DType dtype = DType::kBF16;
  int window = 0;
  float softcap = 0.0f;
  ops::Backend backend = ops::Backend::kFastllm;
  bool fp8_cache = false;  // with scales of 0.5 and 0.25

  DType kv_dtype() const { return fp8_cache ? DType::kF8E4M3 : dtype; }
};

class AttentionCase {
 public:
  // K, V and q are normal deviates; cache rows that belong to no position, or to one whose block is before the window
  // of its sequence's first row, are NaN. Blocks are shuffled.
  AttentionCase(const AttentionShapeSpec& shape, const std::vector<Sequence>& seqs, uint64_t seed);

  // Plans, runs once and waits.
  void Run(Checks& c);
  // Errors of the last run against float64.
  double Error() const;

  const ops::PagedAttentionParams& params() const { return params_; }
  Buffer& out() { return out_; }
  std::string Label() const;

 private:
  void FillCache(uint64_t seed);
  int FirstSeen(int position) const;
  void Reference(int64_t token, int head, double* out) const;

  AttentionShapeSpec s_;
  std::vector<Sequence> seqs_;
  std::vector<int32_t> query_start_ = {0}, seq_len_, table_;
  std::vector<float> q_, k_, v_;
  std::vector<Buffer> device_;
  Buffer out_;
  ops::PagedAttentionParams params_;
};

}  // namespace fastllm::cuda_check
