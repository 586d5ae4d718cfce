// KvNeed: which blocks of its table a sequence needs in one kind of KV group. Pure arithmetic over token counts: the
// tables are GroupManager's. Entry i of a table stands for tokens [i * block_size, (i + 1) * block_size).
#pragma once

#include <cstdint>
#include <limits>
#include <memory>

#include "core/config/resolved.h"
#include "fastllm/status.h"

namespace fastllm {

class KvNeed {
 public:
  static constexpr int32_t kAll = std::numeric_limits<int32_t>::max();

  virtual ~KvNeed() = default;

  // Entries before this one are not read any more by a sequence of which num_settled tokens are final.
  virtual int32_t FirstNeeded(int32_t num_settled) const = 0;

  // How many entries before a block boundary a sequence reads that goes on from there (kAll: every one): what has to be
  // cached for a prefix hit that ends at the boundary. FirstNeeded(n * block_size) is n minus this, or 0.
  virtual int32_t EntriesForHit() const = 0;

  // Whether the last token before a block boundary can be computed again beside the blocks up to there, without writing
  // to them: it reads the entries from FirstNeeded(boundary - 1) on.
  virtual bool CanRepeatLast() const = 0;

  // A step whose tokens end before token `end` needs blocks in the entries that are new in it from this one on;
  // earlier new entries hold the null block.
  virtual int32_t FirstGrown(int32_t end) const = 0;

  // The most blocks that a sequence holds at one time while its first num_tokens tokens are computed.
  virtual int32_t PeakBlocks(int32_t num_tokens) const = 0;
};

// kFull: layers that attend to every earlier token. All blocks are needed to the end.
//
// kSlidingWindow: layers whose token t attends to tokens t - window + 1 .. t. Blocks that end before the window of the
// first token that is not final are given back. With w = window - 1 a hit needs the last ceil(w / block_size) blocks.
//
// kState: layers with a recurrent state instead of KV (Mamba, linear attention). A block is the state of all layers of
// the group after some token. Contract with the executor, for a step that computes tokens begin .. end - 1:
//   - it starts from the state in entry (begin - 1) / block_size; from the zero state for begin = 0;
//   - it writes the state after token (i + 1) * block_size - 1 to every entry i of the step that is not null (these are
//     the checkpoints that prefixes can be hit at), and the state after token end - 1 to the last entry;
//   - the start state is read before anything is written: the last entry is written in place step by step.
// The table has the checkpoint of the last block boundary of a step and its last entry; others are null. A hit needs
// the entry that ends at the boundary. States are not taken back, so the last token is not repeated, and rejected draft
// tokens need a design of their own.
std::unique_ptr<KvNeed> MakeKvNeed(const KvGroupSpec& spec, int32_t block_size, int32_t max_step_tokens);

// Ok when the spec can be used with prefixes cached in units of `block_size` tokens; else names the value.
Status CheckGroupSpec(const KvGroupSpec& spec, int32_t block_size);

}  // namespace fastllm
