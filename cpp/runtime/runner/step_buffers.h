// StepBuffers: the staging buffers that a step's batch layout is written into. Allocated once for the largest step.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/nn/context.h"
#include "runtime/runner/batch_state.h"

namespace fastllm::runtime {

class StepBuffers {
 public:
  explicit StepBuffers(const BatchLimits& limits);

  // Flattens the rows: ids, positions, cache slots, query starts, sequence lengths, block tables, and the last token
  // of each row that samples. The result points into these buffers until the next call.
  StepInput Fill(const BatchState& batch);

  // Token rows whose logits are wanted, in batch order.
  const std::vector<int32_t>& logit_rows() const { return logit_rows_; }

  // These, where they are fewer than the tokens; else unset. Valid until the next Fill().
  WantedRows Wanted() const;

  // The same, the i-th being logit_rows()[order[i]]. Valid until the next call.
  const std::vector<int32_t>& ArrangeLogitRows(const std::vector<int32_t>& order);

 private:
  void FillRow(const BatchRow& row, int32_t first_token, int32_t index);

  int32_t block_size_;
  int32_t max_blocks_;
  std::vector<int32_t> ids_;
  std::vector<int32_t> positions_;
  std::vector<int64_t> slot_mapping_;
  std::vector<int32_t> query_start_;
  std::vector<int32_t> seq_len_;
  std::vector<int32_t> block_table_;
  std::vector<int32_t> logit_rows_;
  std::vector<int32_t> logit_start_;  // by sequence, how many of logit_rows_ are before it
  std::vector<int32_t> arranged_rows_;
};

}  // namespace fastllm::runtime
