#include "runtime/runner/step_buffers.h"

#include <algorithm>

namespace fastllm::runtime {

StepBuffers::StepBuffers(const BatchLimits& l)
    : block_size_(l.block_size),
      max_blocks_(l.max_blocks_per_seq()),
      ids_(l.max_num_batched_tokens),
      positions_(l.max_num_batched_tokens),
      slot_mapping_(l.max_num_batched_tokens),
      query_start_(l.max_num_seqs + 1),
      seq_len_(l.max_num_seqs),
      block_table_(static_cast<size_t>(l.max_num_seqs) * max_blocks_) {
  logit_rows_.reserve(l.max_num_seqs);
  logit_start_.reserve(l.max_num_seqs + 1);
  arranged_rows_.reserve(l.max_num_seqs);
}

void StepBuffers::FillRow(const BatchRow& row, int32_t first_token, int32_t index) {
  const RunnerSequence& s = *row.sequence;
  const int32_t begin = s.num_computed_tokens;
  std::copy_n(s.tokens.data() + begin, row.num_tokens, ids_.data() + first_token);
  for (int32_t i = 0; i < row.num_tokens; ++i) {
    const int32_t position = begin + i;
    positions_[first_token + i] = position;
    slot_mapping_[first_token + i] = s.SlotOf(position, block_size_);
  }
  seq_len_[index] = begin + row.num_tokens;
  std::copy(s.blocks.begin(), s.blocks.end(), block_table_.data() + static_cast<size_t>(index) * max_blocks_);
}

WantedRows StepBuffers::Wanted() const {
  const auto count = static_cast<int32_t>(logit_rows_.size());
  if (count == query_start_[logit_start_.size() - 1]) return {};
  return {logit_rows_.data(), logit_start_.data(), count};
}

const std::vector<int32_t>& StepBuffers::ArrangeLogitRows(const std::vector<int32_t>& order) {
  arranged_rows_.clear();
  for (const int32_t i : order) arranged_rows_.push_back(logit_rows_[i]);
  return arranged_rows_;
}

StepInput StepBuffers::Fill(const BatchState& batch) {
  logit_rows_.clear();
  logit_start_.assign(1, 0);
  query_start_[0] = 0;
  int32_t token = 0, index = 0;
  for (const BatchRow& row : batch.rows()) {
    FillRow(row, token, index);
    token += row.num_tokens;
    query_start_[++index] = token;
    if (row.sample) logit_rows_.push_back(token - 1);
    logit_start_.push_back(static_cast<int32_t>(logit_rows_.size()));
  }
  StepInput in;
  in.ids = ids_.data();
  in.positions = positions_.data();
  in.slot_mapping = slot_mapping_.data();
  in.query_start = query_start_.data();
  in.seq_len = seq_len_.data();
  in.block_table = block_table_.data();
  in.num_tokens = token;
  in.num_seqs = index;
  in.max_blocks = max_blocks_;
  return in;
}

}  // namespace fastllm::runtime
