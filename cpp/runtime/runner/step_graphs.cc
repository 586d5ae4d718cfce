#include "runtime/runner/step_graphs.h"

#include <algorithm>

namespace fastllm::runtime {
namespace {

// Few sizes, as a padded row costs one of the vocabulary head's and little else.
std::vector<int32_t> RowLadder(int32_t most) {
  std::vector<int32_t> sizes;
  for (const int32_t size : {8, 64}) {
    if (size < most) sizes.push_back(size);
  }
  sizes.push_back(most);
  return sizes;
}

// The smallest that holds n; 0 when none does.
int32_t LeastOf(const std::vector<int32_t>& ladder, int32_t n) {
  const auto it = std::lower_bound(ladder.begin(), ladder.end(), n);
  return it == ladder.end() ? 0 : *it;
}

}  // namespace

std::vector<int32_t> DecodeLadder(int32_t most) {
  std::vector<int32_t> sizes;
  for (int32_t size = 1; size < most;) {
    sizes.push_back(size);
    size += size < 8 ? size : size < 64 ? 8 : size < 256 ? 16 : 32;
  }
  sizes.push_back(most);
  return sizes;
}

std::vector<int32_t> PrefillLadder(int32_t most) {
  constexpr int32_t kMostTokens = 256;
  std::vector<int32_t> sizes;
  for (int32_t size = 16; size <= std::min(most, kMostTokens);) {
    sizes.push_back(size);
    size += size < 32 ? 16 : 32;
  }
  return sizes;
}

StepGraphs::StepGraphs(const ops::DeviceApi& device, void* stream, const GraphLimits& limits)
    : device_(device),
      stream_(stream),
      limits_(limits),
      decode_ladder_(DecodeLadder(std::min(limits.max_rows, limits.max_tokens))),
      token_ladder_(PrefillLadder(limits.max_tokens)),
      row_ladder_(RowLadder(limits.max_rows)),
      closed_(!device.has_graphs()) {}

StepGraphs::~StepGraphs() {
  for (const auto& [key, entry] : entries_) {
    if (entry.graph != nullptr) device_.DestroyGraph(entry.graph);
  }
}

StageShape StepGraphs::Pad(const StageShape& exact, bool decode) const {
  StageShape s;
  if (decode) {
    s.tokens = s.seqs = s.samples = LeastOf(decode_ladder_, exact.seqs);
    return s;
  }
  const int32_t tokens = LeastOf(token_ladder_, exact.tokens);
  const int32_t rows = LeastOf(row_ladder_, exact.seqs);
  if (exact.samples == 0 || tokens == 0 || rows == 0) return s;
  s.tokens = tokens;
  s.seqs = rows + 1;
  s.samples = std::min(rows, tokens);
  return s;
}

bool StepGraphs::MayCapture(const StepKey& key) {
  if (closed_ || (!key.decode && num_prefill_ >= limits_.max_prefill)) return false;
  closed_ = !AllSay(device_.memory().free_bytes >= limits_.min_free_bytes);
  return !closed_;
}

void* StepGraphs::Capture(const std::function<void()>& enqueue) {
  void* graph = CaptureHere(enqueue);
  bool all = false;
  try {
    all = AllSay(graph != nullptr);
  } catch (...) {
    if (graph != nullptr) device_.DestroyGraph(graph);
    throw;
  }
  if (all || graph == nullptr) return graph;
  device_.DestroyGraph(graph);
  return nullptr;
}

void* StepGraphs::CaptureHere(const std::function<void()>& enqueue) {
  device_.BeginCapture(stream_);
  try {
    enqueue();
  } catch (...) {
    if (void* graph = device_.EndCapture(stream_); graph != nullptr) device_.DestroyGraph(graph);
    throw;
  }
  return device_.EndCapture(stream_);
}

void StepGraphs::Run(const StepKey& key, const std::function<void()>& enqueue) {
  Entry& entry = entries_[key];
  if (entry.graph == nullptr && entry.uses + 1 >= kUsesToCapture && MayCapture(key)) {
    entry.graph = Capture(enqueue);
    if (entry.graph != nullptr) {
      ++num_captured_;
      num_prefill_ += key.decode ? 0 : 1;
    } else {
      closed_ = true;
    }
  }
  ++entry.uses;
  if (entry.graph != nullptr) {
    device_.LaunchGraph(entry.graph, stream_);
  } else {
    enqueue();
  }
}

}  // namespace fastllm::runtime
