// A device that does nothing, for tests that watch what is asked of one: they override what they look at.
#pragma once

#include <cstddef>

#include "ops/table/device.h"

namespace fastllm::runtime::testing {

class IdleDevice : public ops::DeviceApi {
 public:
  const char* name() const override { return "idle"; }
  ops::DeviceMemoryInfo memory() const override { return {}; }
  void* CreateStream() const override { return nullptr; }
  void DestroyStream(void*) const override {}
  void Synchronize(void*) const override {}
  void* AllocatePinned(size_t) const override { return nullptr; }
  void FreePinned(void*) const override {}
  void Copy(void*, const void*, size_t, void*) const override {}
  void Zero(void*, size_t, void*) const override {}
  void* CreateEvent() const override { return nullptr; }
  void DestroyEvent(void*) const override {}
  void RecordEvent(void*, void*) const override {}
  void WaitEvent(void*) const override {}
  bool has_graphs() const override { return false; }
  void BeginCapture(void*) const override {}
  void* EndCapture(void*) const override { return nullptr; }
  void LaunchGraph(void*, void*) const override {}
  void DestroyGraph(void*) const override {}
};

}  // namespace fastllm::runtime::testing
