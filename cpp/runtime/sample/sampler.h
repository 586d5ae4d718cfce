// Sampler: from logits to tokens for the rows of one step.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/base/ids.h"
#include "core/step/step_plan.h"
#include "fastllm/status.h"
#include "ops/contract/sampling.h"
#include "ops/table/op_table.h"

namespace fastllm::runtime {

// Worker thread. The buffers are allocated once for max_rows and reused.
class Sampler {
 public:
  static Result<Sampler> Create(const ops::OpTable& table, ops::Device device, int32_t vocab_size, int32_t max_rows);

  // Begins a step.
  void Clear();

  // Adds a row. output_index counts the tokens that the request has already produced: it is the counter of its random
  // stream, and below spec.min_tokens the ids in spec.banned_until_min cannot be picked.
  void Add(const SamplingSpec& spec, int32_t output_index);

  // Samples logits [rows added, vocab]. The tokens stay valid until Clear(); -1 for a row without a usable logit.
  const std::vector<int32_t>& Run(const at::Tensor& logits, const ops::OpContext& op);

 private:
  Sampler() = default;

  ops::SampleFn fn_ = nullptr;
  int32_t vocab_size_ = 0;
  std::vector<ops::SampleRow> rows_;
  std::vector<int32_t> ban_ids_;
  std::vector<int32_t> ban_start_;
  std::vector<int32_t> tokens_;
};

}  // namespace fastllm::runtime
