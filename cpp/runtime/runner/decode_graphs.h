// DecodeGraphs: captured decode steps for a ladder of batch sizes.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "ops/contract/device.h"

namespace fastllm::runtime {

// Batch sizes that steps are padded to: 1, 2, 4, 8, multiples of 8 up to 64, of 16 up to 256, of 32 beyond, and
// `most`. Ascending.
std::vector<int32_t> DecodeLadder(int32_t most);

// A size is captured when it is needed for the second time; the first, uncaptured, has warmed up what its ops
// allocate. When the device runs out of room for graphs no more are captured, and steps run as they are. Runner's
// thread.
class DecodeGraphs {
 public:
  // `min_free_bytes`: capture nothing when the device has less.
  DecodeGraphs(const ops::DeviceApi& device, void* stream, int32_t max_rows, int64_t min_free_bytes);
  ~DecodeGraphs();
  DecodeGraphs(const DecodeGraphs&) = delete;
  DecodeGraphs& operator=(const DecodeGraphs&) = delete;

  // The smallest size of the ladder that holds `rows`; 0 when none does.
  int32_t SizeFor(int32_t rows) const;

  // Runs a step of this size: launches its graph, or calls `enqueue`, which puts the step on the stream.
  void Run(int32_t size, const std::function<void()>& enqueue);

  int32_t num_captured() const { return num_captured_; }

 private:
  struct Entry {
    int32_t size = 0;
    int32_t uses = 0;
    void* graph = nullptr;
  };
  void* Capture(const std::function<void()>& enqueue);

  const ops::DeviceApi& device_;
  void* stream_;
  int64_t min_free_bytes_;
  std::vector<Entry> entries_;
  int32_t num_captured_ = 0;
  bool closed_ = false;
};

}  // namespace fastllm::runtime
