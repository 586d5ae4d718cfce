// The plan record of the CUDA attention kernels (contract/attention_plan.h): how it is laid out and made. No CUDA here:
// the same header serves host and device code.
//
//   header   kPlanHeader ints: workers, tiles, decodes, 0
//   workers  decode_workers x DecodeWorker
//   tiles    prefill_tiles x PrefillTile
//   decodes  one DecodeSequence per sequence with one query row
//
// Decode: the K and V of all (sequence, KV head) pairs, in units of kUnitTokens positions, are one line that the
// workers cut into equal pieces ("stream-K"). A pair cut between workers is put together by the one that finishes last.
#pragma once

#include <cstdint>

#include "ops/contract/attention_plan.h"

namespace fastllm::cuda {

struct DecodeSequence {
  int32_t seq;     // row of the block table
  int32_t token;   // row of q and out
  int32_t length;  // positions
  int32_t units;   // ceil(length / kUnitTokens)
};

struct DecodeWorker {
  DecodeSequence first;  // sequence of the first pair, here too so that a kernel needs one load to begin
  int32_t decode;        // its index in decodes
  int32_t kv_head;       // of the first pair
  int32_t first_unit;    // within the first pair
  int32_t units;         // in all; 0: nothing to do
  int32_t owner;         // worker with the first unit of the first pair
  int32_t owner_parts;   // workers that share the first pair, when first_unit > 0
  int32_t tail_parts;    // workers that share the pair that starts here and ends elsewhere
  int32_t unused;
};

// Rows [first_row, first_row + tile rows) of the (query token, head of a group) rows of a sequence.
struct PrefillTile {
  int32_t seq;
  int32_t first_row;
  int32_t query_len;
  int32_t length;
};

inline constexpr int32_t kPlanHeader = 4;
inline constexpr int32_t kDecodeWarps = 4;
inline constexpr int32_t kTileTokens = 16;  // positions that one warp does at a time
inline constexpr int32_t kUnitTokens = kDecodeWarps * kTileTokens;
inline constexpr int32_t kPrefillRows = 128;

// Query heads per KV head that the decode kernel takes; wider groups go to the prefill kernel. Models with more than
// eight (Qwen3-235B, GLM-4) all have head_dim 128.
inline constexpr int32_t MaxDecodeGroup(int32_t head_dim) { return head_dim == 128 ? 16 : 8; }

// Thread blocks of the decode kernel that a multiprocessor holds at once.
inline constexpr int32_t DecodeBlocksPerSm(int32_t head_dim) { return head_dim <= 128 ? 2 : 1; }

// Writes the record. Throws InternalError where it does not fit. max_workers: of this device.
ops::AttentionPlanSize MakePlan(const ops::AttentionPlanParams& p, int32_t max_workers);

// For any batch within the bounds.
ops::AttentionBound PlanBound(const ops::AttentionBoundParams& p, int32_t max_workers);

// Bytes of the workspace parts: counters first, then partial (max, sum) pairs, then partial outputs.
struct DecodeWorkspace {
  int64_t counters;
  int64_t sums;
  int64_t outputs;
  int64_t total() const { return counters + sums + outputs; }
};
DecodeWorkspace WorkspaceFor(int32_t workers, int32_t group, int32_t head_dim);

}  // namespace fastllm::cuda
