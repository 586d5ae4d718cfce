// DeviceApi: what a runner needs of a device beside ops: streams, page-locked staging, events, captured graphs.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace fastllm::ops {

struct DeviceMemoryInfo {
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;  // as the driver sees it: memory of other processes counts as used
};

// The devices of one kind, one of which is current in each thread (the first, until Use()). Streams, events and graphs
// are opaque handles of the device that was current when they were made. Failures throw InternalError with the call and
// the driver's reason. The calls that create or capture belong to the runner's thread; those that wait for an event or
// ask for it may come from any.
// The host's version (the CPU) has one implicit stream on which everything is done when the call returns.
class DeviceApi {
 public:
  virtual ~DeviceApi() = default;

  // How many there are.
  virtual int32_t count() const { return 1; }
  // Makes a device, by its number, the current one of the calling thread.
  virtual void Use(int32_t /*number*/) const {}

  // These are of the current device.
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
  // `rows` rows of `width` bytes, whose beginnings are a pitch of bytes apart on either side.
  virtual void CopyRows(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t rows,
                        void* stream) const {
    for (size_t r = 0; r < rows; ++r) {
      Copy(static_cast<char*>(to) + r * to_pitch, static_cast<const char*>(from) + r * from_pitch, width, stream);
    }
  }
  virtual void Zero(void* memory, size_t bytes, void* stream) const = 0;

  virtual void* CreateEvent() const = 0;
  virtual void DestroyEvent(void* event) const = 0;
  virtual void RecordEvent(void* event, void* stream) const = 0;
  virtual void WaitEvent(void* event) const = 0;  // the calling thread waits
  // Whether an event has come; one that was never recorded has, and all have where calls return when they are done.
  virtual bool IsDone(void* /*event*/) const { return true; }
  // What is put on the stream from now on begins when the event has come, as it was recorded last.
  virtual void AwaitEvent(void* /*event*/, void* /*stream*/) const {}

  // In stream order: *word becomes value, on this device or on one that it writes to. Who reads the value there
  // (acquire) can read what this stream has written before, copies too.
  virtual void SetWord(uint32_t* word, uint32_t value, void* /*stream*/) const {
    std::atomic_ref<uint32_t>(*word).store(value, std::memory_order_release);
  }

  // Between Begin and End, what is enqueued on the stream is recorded and not run. End returns a graph that can be
  // launched, or null when nothing could be recorded (Begin was refused, a call in between is not allowed in graphs).
  virtual bool has_graphs() const = 0;
  virtual void BeginCapture(void* stream) const = 0;
  virtual void* EndCapture(void* stream) const = 0;
  virtual void LaunchGraph(void* graph, void* stream) const = 0;
  virtual void DestroyGraph(void* graph) const = 0;
};

}  // namespace fastllm::ops
