// StepGraphs: captured steps, of sizes that steps are padded to.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "ops/contract/device.h"
#include "runtime/runner/device_stage.h"

namespace fastllm::runtime {

// Batch sizes that decode steps are padded to: 1, 2, 4, 8, multiples of 8 up to 64, of 16 up to 256, of 32 beyond, and
// `most`. Ascending.
std::vector<int32_t> DecodeLadder(int32_t most);

// Tokens that other steps are padded to: 16 and multiples of 32 up to 256; none above `most`. Steps of more tokens keep
// the device busy for longer than it takes to put them on the stream, and padding costs them products. Ascending.
std::vector<int32_t> PrefillLadder(int32_t most);

// All that the launches of a step depend on.
struct StepKey {
  StageShape shape;
  int32_t decode_workers = 0;
  int32_t prefill_tiles = 0;
  bool decode = false;  // one new token of each sequence
  bool penalties = false;
  bool logprobs = false;
  bool picks = false;  // ranks pick the tokens from their parts of the logits

  auto operator<=>(const StepKey&) const = default;
};

struct GraphLimits {
  int32_t max_rows = 0;  // sequences of a step
  int32_t max_tokens = 0;
  int64_t min_free_bytes = 0;  // capture nothing when the device has less
  int32_t max_prefill = 0;     // graphs of steps that are not pure decode
  // Of ranks that run the same steps: whether all say yes. Called by all for the same steps; throws what a broken group
  // says. Null: there is one rank.
  std::function<bool(bool yes)> all_say = nullptr;
};

// A step is captured when its key comes for the second time; the first, uncaptured, has warmed up what its ops
// allocate. When the device runs out of room for graphs no more are captured, and steps run as they are. Ranks capture
// the same steps: none, from then on, where one of them cannot. Runner's thread.
class StepGraphs {
 public:
  static constexpr int kUsesToCapture = 2;

  StepGraphs(const ops::DeviceApi& device, void* stream, const GraphLimits& limits);
  ~StepGraphs();
  StepGraphs(const StepGraphs&) = delete;
  StepGraphs& operator=(const StepGraphs&) = delete;

  // What a step of these counts is padded to; no tokens where it is too large, or, unless it is pure decode, samples
  // nothing. record_ints is left to the caller. Padding of `decode` is a sequence a token; else all of it belongs to
  // sequences behind those of the step, of which there is room for one more than max_rows.
  StageShape Pad(const StageShape& exact, bool decode) const;

  // Runs a step: launches its graph, or calls `enqueue`, which puts the step on the stream.
  void Run(const StepKey& key, const std::function<void()>& enqueue);

  // Whether more may be captured, as far as is known.
  bool captures() const { return !closed_; }
  int32_t num_captured() const { return num_captured_; }

 private:
  struct Entry {
    int32_t uses = 0;
    void* graph = nullptr;
  };
  bool AllSay(bool yes) const { return limits_.all_say ? limits_.all_say(yes) : yes; }
  bool MayCapture(const StepKey& key);
  // Null where it could not be captured, here or on another rank.
  void* Capture(const std::function<void()>& enqueue);
  void* CaptureHere(const std::function<void()>& enqueue);

  const ops::DeviceApi& device_;
  void* stream_;
  GraphLimits limits_;
  std::vector<int32_t> decode_ladder_;
  std::vector<int32_t> token_ladder_;
  std::vector<int32_t> row_ladder_;  // of steps that are not pure decode
  std::map<StepKey, Entry> entries_;
  int32_t num_captured_ = 0;
  int32_t num_prefill_ = 0;  // of those captured
  bool closed_ = false;
};

}  // namespace fastllm::runtime
