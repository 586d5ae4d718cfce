// DeviceApi: what a runner needs of a device beside ops: streams, page-locked staging, events, captured graphs.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastllm::ops {

struct DeviceMemoryInfo {
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;  // as the driver sees it: memory of other processes counts as used
};

// One device of this process. Streams, events and graphs are opaque handles. Failures throw InternalError with the call
// and the driver's reason. The calls that create or capture belong to the runner's thread; WaitEvent may come from any.
// The host's version (the CPU) has one implicit stream on which everything is done when the call returns.
class DeviceApi {
 public:
  virtual ~DeviceApi() = default;

  virtual const char* name() const = 0;
  virtual int32_t compute_capability() const { return 0; }  // of CUDA: 90 for 9.0
  virtual DeviceMemoryInfo memory() const = 0;

  virtual void* CreateStream() const = 0;
  virtual void DestroyStream(void* stream) const = 0;
  // Returns when all that was enqueued is done; throws what went wrong meanwhile.
  virtual void Synchronize(void* stream) const = 0;

  // Host memory that the device copies from and to without a bounce buffer. Not zeroed.
  virtual void* AllocatePinned(size_t bytes) const = 0;
  virtual void FreePinned(void* memory) const = 0;

  // In stream order; either side may be on the host (then pinned) or on the device.
  virtual void Copy(void* to, const void* from, size_t bytes, void* stream) const = 0;
  virtual void Zero(void* memory, size_t bytes, void* stream) const = 0;

  virtual void* CreateEvent() const = 0;
  virtual void DestroyEvent(void* event) const = 0;
  virtual void RecordEvent(void* event, void* stream) const = 0;
  virtual void WaitEvent(void* event) const = 0;  // the calling thread waits

  // Between Begin and End, what is enqueued on the stream is recorded and not run. End returns a graph that can be
  // launched, or null when nothing could be recorded (Begin was refused, a call in between is not allowed in graphs).
  virtual bool has_graphs() const = 0;
  virtual void BeginCapture(void* stream) const = 0;
  virtual void* EndCapture(void* stream) const = 0;
  virtual void LaunchGraph(void* graph, void* stream) const = 0;
  virtual void DestroyGraph(void* graph) const = 0;
};

}  // namespace fastllm::ops
