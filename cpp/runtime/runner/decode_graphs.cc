#include "runtime/runner/decode_graphs.h"

#include <algorithm>

#include "core/base/check.h"

namespace fastllm::runtime {

std::vector<int32_t> DecodeLadder(int32_t most) {
  std::vector<int32_t> sizes;
  for (int32_t size = 1; size < most;) {
    sizes.push_back(size);
    size += size < 8 ? size : size < 64 ? 8 : size < 256 ? 16 : 32;
  }
  sizes.push_back(most);
  return sizes;
}

DecodeGraphs::DecodeGraphs(const ops::DeviceApi& device, void* stream, int32_t max_rows, int64_t min_free_bytes)
    : device_(device), stream_(stream), min_free_bytes_(min_free_bytes), closed_(!device.has_graphs()) {
  for (const int32_t size : DecodeLadder(max_rows)) entries_.push_back({size, 0, nullptr});
}

DecodeGraphs::~DecodeGraphs() {
  for (const Entry& e : entries_) {
    if (e.graph != nullptr) device_.DestroyGraph(e.graph);
  }
}

int32_t DecodeGraphs::SizeFor(int32_t rows) const {
  const auto it =
      std::lower_bound(entries_.begin(), entries_.end(), rows, [](const Entry& e, int32_t n) { return e.size < n; });
  return it == entries_.end() ? 0 : it->size;
}

void* DecodeGraphs::Capture(const std::function<void()>& enqueue) {
  device_.BeginCapture(stream_);
  try {
    enqueue();
  } catch (...) {
    if (void* graph = device_.EndCapture(stream_); graph != nullptr) device_.DestroyGraph(graph);
    throw;
  }
  return device_.EndCapture(stream_);
}

void DecodeGraphs::Run(int32_t size, const std::function<void()>& enqueue) {
  const auto it = std::find_if(entries_.begin(), entries_.end(), [size](const Entry& e) { return e.size == size; });
  FASTLLM_CHECK(it != entries_.end(), "no decode step of " + std::to_string(size) + " rows");
  if (it->graph == nullptr && it->uses > 0 && !closed_) {
    closed_ = device_.memory().free_bytes < min_free_bytes_;
    if (!closed_) it->graph = Capture(enqueue);
    if (it->graph != nullptr) {
      ++num_captured_;
    } else {
      closed_ = true;
    }
  }
  ++it->uses;
  if (it->graph != nullptr) {
    device_.LaunchGraph(it->graph, stream_);
  } else {
    enqueue();
  }
}

}  // namespace fastllm::runtime
