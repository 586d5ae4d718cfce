// The CPU as a device: one implicit stream, on which every call is done when it returns.
#include <cstdlib>
#include <cstring>

#include "core/base/check.h"
#include "ops/table/device.h"

namespace fastllm::ops {
namespace {

constexpr size_t kAlignment = 64;

class Host final : public DeviceApi {
 public:
  const char* name() const override { return "cpu"; }
  DeviceMemoryInfo memory() const override { return {}; }

  void* CreateStream() const override { return nullptr; }
  void DestroyStream(void*) const override {}
  void Synchronize(void*) const override {}

  void* AllocatePinned(size_t bytes) const override {
    void* p = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
    FASTLLM_CHECK(p != nullptr || bytes == 0, "out of memory for " + std::to_string(bytes) + " bytes of staging");
    return p;
  }
  void FreePinned(void* memory) const override { std::free(memory); }

  void Copy(void* to, const void* from, size_t bytes, void*) const override {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  void Zero(void* memory, size_t bytes, void*) const override {
    if (bytes > 0) std::memset(memory, 0, bytes);
  }

  void* CreateEvent() const override { return nullptr; }
  void DestroyEvent(void*) const override {}
  void RecordEvent(void*, void*) const override {}
  void WaitEvent(void*) const override {}

  bool has_graphs() const override { return false; }
  void BeginCapture(void*) const override { FASTLLM_CHECK(false, "the CPU captures no graphs"); }
  void* EndCapture(void*) const override { return nullptr; }
  void LaunchGraph(void*, void*) const override { FASTLLM_CHECK(false, "the CPU captures no graphs"); }
  void DestroyGraph(void*) const override {}
};

}  // namespace

const DeviceApi& HostDevice() {
  static const Host host;
  return host;
}

}  // namespace fastllm::ops
