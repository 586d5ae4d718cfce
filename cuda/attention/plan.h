// The plan record of the CUDA attention kernels (contract/attention_plan.h): how it is laid out and made. No CUDA here:
// the same header serves host and device code.
//
//   header   kPlanHeader ints: workers, tiles, decodes, tiles with work (the first ones)
//   workers  decode_workers x DecodeWorker
//   tiles    prefill_tiles x PrefillTile
//   decodes  one DecodeSequence per sequence with one query row
//
// Prefill: a tile is kPrefillRows query rows of a sequence against its K and V, in column tiles of PrefillCols
// positions. Where there are too few tiles to fill the machine, a tile's columns are cut into parts; the last one done
// adds them up.
//
// Decode: the K and V of all (sequence, KV head) pairs, in units of kUnitTokens positions, are one line that the
// workers cut into equal pieces ("stream-K"). A pair cut between workers is put together by the one that finishes last.
//
// With a window neither has units or column tiles of which no row sees a position.
#pragma once

#include <cstdint>

#include "ops/contract/attention_plan.h"

namespace fastllm::cuda {

struct DecodeSequence {
  int32_t seq;     // row of the block table
  int32_t token;   // row of q and out
  int32_t length;  // positions
  int32_t units;   // from that of the first position in the window to the last
};

struct DecodeWorker {
  DecodeSequence first;  // sequence of the first pair, here too so that a kernel needs one load to begin
  int32_t decode;        // its index in decodes
  int32_t kv_head;       // of the first pair
  int32_t first_unit;    // within the units of the first pair
  int32_t units;         // in all; 0: nothing to do
  int32_t owner;         // worker with the first unit of the first pair
  int32_t owner_parts;   // workers that share the first pair, when first_unit > 0
  int32_t tail_parts;    // workers that share the pair that starts here and ends elsewhere
  int32_t unused;
};

// Rows [first_row, first_row + kPrefillRows) of the (query token, head of the group) rows of a sequence.
struct PrefillTile {
  int32_t seq;    // row of the block table
  int32_t token;  // row of q and out of the sequence's first query token
  int32_t first_row;
  int32_t query_len;   // 0: nothing to do, nor for any after it
  int32_t length;      // positions
  int32_t first_tile;  // of its column tiles; this part
  int32_t tiles;
  int32_t part;  // of parts
  int32_t parts;
  int32_t slot;      // parts > 1: KV head h leaves its part in slot + h * parts + part
  int32_t together;  // 1: all parts are among the items that the kernel's blocks begin with
  int32_t unused;
};

inline constexpr int32_t kPlanHeader = 4;
inline constexpr int32_t kPlanUsedTiles = 3;  // place in the header
inline constexpr int32_t kDecodeWarps = 4;
inline constexpr int32_t kTileTokens = 16;  // positions that one warp does at a time
inline constexpr int32_t kUnitTokens = kDecodeWarps * kTileTokens;
inline constexpr int32_t kPrefillRows = 128;
inline constexpr int32_t kPrefillWarps = kPrefillRows / 16;
inline constexpr int32_t kMaxPrefillParts = 16;
inline constexpr int32_t kNoWindow = 1 << 30;  // what kernels get for a window of 0
// Positions of a column tile.
inline constexpr int32_t PrefillCols(int32_t head_dim) { return head_dim > 128 ? 64 : 128; }

// Query heads per KV head that the decode kernel takes; wider groups go to the prefill kernel. Models with more than
// eight (Qwen3-235B, GLM-4) all have head_dim 128.
inline constexpr int32_t MaxDecodeGroup(int32_t head_dim) { return head_dim == 128 ? 16 : 8; }

// Thread blocks of the decode kernel that a multiprocessor holds at once.
inline constexpr int32_t DecodeBlocksPerSm(int32_t head_dim) { return head_dim <= 128 ? 2 : 1; }

// What the plan must know of the device.
struct PlanDevice {
  int32_t decode_workers = 0;   // the most that run at once; 0: others do what the decode kernel would
  int32_t prefill_workers = 0;  // the same; 0: its prefill kernel does not take parts
};

// Writes the record. Throws InternalError where it does not fit.
ops::AttentionPlanSize MakePlan(const ops::AttentionPlanParams& p, const PlanDevice& device);

// For any batch within the bounds.
ops::AttentionBound PlanBound(const ops::AttentionBoundParams& p, const PlanDevice& device);

// Bytes of the workspace: that of prefill, then that of decode. Each has counters first, then partial (max, sum)
// pairs, then partial outputs.
struct WorkspaceBytes {
  int64_t counters = 0;
  int64_t sums = 0;
  int64_t outputs = 0;
  int64_t total() const { return counters + sums + outputs; }
};
WorkspaceBytes DecodeWorkspace(int32_t workers, int32_t group, int32_t head_dim);
// One slot per worker; the first counter is the next item to take, the others are kPrefillWarps per slot.
WorkspaceBytes PrefillWorkspace(int32_t workers, int32_t head_dim);

}  // namespace fastllm::cuda
