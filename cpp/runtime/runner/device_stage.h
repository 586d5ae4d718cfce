// DeviceStage: everything that a step needs from the host, laid out in one piece so that one copy brings it over.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "ops/contract/sampling.h"
#include "runtime/nn/context.h"
#include "runtime/runner/batch_state.h"
#include "runtime/sample/sample_rule.h"

namespace fastllm::runtime {

// The counts that fix where everything lies. A captured graph keeps those that it was captured with; rows that a step
// does not have are padding: of sequences of length 0 with one token each, as many as are left over with the last;
// nothing written, nothing kept.
struct StageShape {
  int32_t tokens = 0;
  int32_t seqs = 0;
  int32_t samples = 0;
  int64_t record_ints = 0;  // room for the attention plan

  auto operator<=>(const StageShape&) const = default;
};

// Byte offsets. What varies in width comes last.
struct StageLayout {
  int64_t slot_mapping = 0;  // int64 [tokens]
  int64_t rules = 0;         // ops::SampleRow [samples]
  int64_t penalties = 0;     // ops::PenaltyRow [samples]
  int64_t count_rows = 0;    // int32 [samples]
  int64_t asks = 0;          // ops::LogprobsRow [samples]
  int64_t planned = 0;       // int32 [tokens], see ops::FeedTokensParams
  int64_t positions = 0;     // int32 [tokens]
  int64_t query_start = 0;   // int32 [seqs + 1]
  int64_t seq_len = 0;       // int32 [seqs]
  int64_t logit_rows = 0;    // int32 [samples]
  int64_t keep_slots = 0;    // int32 [samples]
  int64_t ban_start = 0;     // int32 [samples + 1]
  int64_t table_width = 0;   // int32
  int64_t record = 0;        // int32 [record_ints]
  int64_t table = 0;         // int32 [seqs, table_width], then the banned ids, then the biases

  static StageLayout Of(const StageShape& shape);
};

// One step, written down. Pointers and sizes of the parts that vary.
struct StagedStep {
  StageShape shape;
  StageLayout layout;
  int64_t bytes = 0;       // to copy
  int32_t num_bans = 0;    // of all rows
  int64_t ban_ids = 0;     // byte offset
  int32_t num_biases = 0;  // of all rows
  int64_t biases = 0;      // byte offset
  bool penalties = false;  // a row of the device's sampler has some
  bool logprobs = false;   // so has one
  bool prompt_logprobs = false;
  bool greedy = true;              // all rows are, and nothing else is asked of them
  std::vector<int32_t> host_rows;  // of those that sample: what the device's sampler does not do

  bool needs_host() const { return prompt_logprobs || !host_rows.empty(); }
};

// The most bytes that a step within the limits takes, padding by one sequence more than their most included.
int64_t MaxStageBytes(const BatchLimits& limits, int64_t record_ints);

// Writes the rows of the batch into `host` (page-locked, of `capacity` bytes), padded to `shape`. The attention plan's
// record is left to the caller.
StagedStep FillStage(const BatchState& batch, const StageShape& shape, const DeviceSampling& device, char* host,
                     int64_t capacity);

// As FillStage, for a step that only shows what one needs: `shape.tokens` tokens over `shape.seqs` sequences that all
// read block 0 and write nothing.
StagedStep FillDryStage(const BatchLimits& limits, const StageShape& shape, char* host);

// As FillStage, for a step that is all padding.
StagedStep FillEmptyStage(const StageShape& shape, char* host);

}  // namespace fastllm::runtime
