// The CUDA devices behind ops::DeviceApi.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <string>
#include <vector>

#include "core/base/check.h"
#include "ops/table/device.h"

namespace fastllm::ops {
namespace {

void Must(cudaError_t e, const char* call) {
  if (e == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());  // a sticky copy would be blamed on the next launch
  FASTLLM_CHECK(false, std::string(call) + ": " + cudaGetErrorString(e));
}

cudaStream_t Stream(void* stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t Event(void* event) { return static_cast<cudaEvent_t>(event); }

// The driver's function by name, so that nothing links the driver's library.
using WriteWordFn = decltype(&cuStreamWriteValue32);
WriteWordFn WriteWord() {
  static const WriteWordFn fn = [] {
    void* p = nullptr;
    cudaDriverEntryPointQueryResult found{};
    Must(cudaGetDriverEntryPointByVersion("cuStreamWriteValue32", &p, 12000, cudaEnableDefault, &found),
         "cuStreamWriteValue32");
    FASTLLM_CHECK(found == cudaDriverEntryPointSuccess, "cuStreamWriteValue32: not in this driver");
    return reinterpret_cast<WriteWordFn>(p);
  }();
  return fn;
}

class Cuda final : public DeviceApi {
 public:
  explicit Cuda(int count) {
    for (int device = 0; device < count; ++device) {
      cudaDeviceProp properties;
      Must(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
      facts_.push_back({properties.name, properties.major * 10 + properties.minor});
    }
  }

  int32_t count() const override { return static_cast<int32_t>(facts_.size()); }
  void Use(int32_t number) const override { Must(cudaSetDevice(number), "cudaSetDevice"); }

  const char* name() const override { return Current().name.c_str(); }
  int32_t compute_capability() const override { return Current().capability; }
  DeviceMemoryInfo memory() const override {
    size_t free_bytes = 0, total = 0;
    Must(cudaMemGetInfo(&free_bytes, &total), "cudaMemGetInfo");
    return {static_cast<int64_t>(total), static_cast<int64_t>(free_bytes)};
  }

  void* CreateStream() const override {
    cudaStream_t stream = nullptr;
    Must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    return stream;
  }
  void DestroyStream(void* stream) const override { static_cast<void>(cudaStreamDestroy(Stream(stream))); }
  void Synchronize(void* stream) const override {
    Must(cudaStreamSynchronize(Stream(stream)), "cudaStreamSynchronize");
  }

  void* AllocatePinned(size_t bytes) const override {
    void* p = nullptr;
    Must(cudaMallocHost(&p, bytes), ("cudaMallocHost of " + std::to_string(bytes) + " bytes").c_str());
    return p;
  }
  void FreePinned(void* memory) const override { static_cast<void>(cudaFreeHost(memory)); }

  void Copy(void* to, const void* from, size_t bytes, void* stream) const override {
    if (bytes > 0) Must(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, Stream(stream)), "cudaMemcpyAsync");
  }
  void CopyRows(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t rows,
                void* stream) const override {
    if (width == 0 || rows == 0) return;
    Must(cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, rows, cudaMemcpyDefault, Stream(stream)),
         "cudaMemcpy2DAsync");
  }
  void Zero(void* memory, size_t bytes, void* stream) const override {
    if (bytes > 0) Must(cudaMemsetAsync(memory, 0, bytes, Stream(stream)), "cudaMemsetAsync");
  }

  void* CreateEvent() const override {
    cudaEvent_t event = nullptr;
    Must(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
    return event;
  }
  void DestroyEvent(void* event) const override { static_cast<void>(cudaEventDestroy(Event(event))); }
  void RecordEvent(void* event, void* stream) const override {
    Must(cudaEventRecord(Event(event), Stream(stream)), "cudaEventRecord");
  }
  void WaitEvent(void* event) const override { Must(cudaEventSynchronize(Event(event)), "cudaEventSynchronize"); }
  bool IsDone(void* event) const override {
    const cudaError_t e = cudaEventQuery(Event(event));
    if (e == cudaErrorNotReady) {
      static_cast<void>(cudaGetLastError());
      return false;
    }
    Must(e, "cudaEventQuery");
    return true;
  }

  void AwaitEvent(void* event, void* stream) const override {
    Must(cudaStreamWaitEvent(Stream(stream), Event(event), 0), "cudaStreamWaitEvent");
  }

  // What the stream has written before is visible to all devices first: the call's default.
  void SetWord(uint32_t* word, uint32_t value, void* stream) const override {
    const CUresult r = WriteWord()(Stream(stream), reinterpret_cast<CUdeviceptr>(word), value, 0);
    FASTLLM_CHECK(r == CUDA_SUCCESS, "cuStreamWriteValue32: driver error " + std::to_string(static_cast<int>(r)));
  }

  bool has_graphs() const override { return true; }
  void BeginCapture(void* stream) const override {
    Must(cudaStreamBeginCapture(Stream(stream), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  }
  void* EndCapture(void* stream) const override {
    cudaGraph_t graph = nullptr;
    if (cudaStreamEndCapture(Stream(stream), &graph) != cudaSuccess || graph == nullptr) {
      static_cast<void>(cudaGetLastError());
      return nullptr;
    }
    cudaGraphExec_t exec = nullptr;
    const cudaError_t e = cudaGraphInstantiate(&exec, graph, 0);
    static_cast<void>(cudaGraphDestroy(graph));
    if (e == cudaSuccess) return exec;
    static_cast<void>(cudaGetLastError());
    return nullptr;
  }
  void LaunchGraph(void* graph, void* stream) const override {
    Must(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), Stream(stream)), "cudaGraphLaunch");
  }
  void DestroyGraph(void* graph) const override {
    static_cast<void>(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph)));
  }

 private:
  struct Facts {
    std::string name;
    int32_t capability = 0;
  };
  const Facts& Current() const {
    int device = 0;
    Must(cudaGetDevice(&device), "cudaGetDevice");
    return facts_[device];
  }

  std::vector<Facts> facts_;
};

int CountDevices() {
  int count = 0;
  const bool found = cudaGetDeviceCount(&count) == cudaSuccess;
  static_cast<void>(cudaGetLastError());
  return found ? count : 0;
}

}  // namespace

const DeviceApi* CudaDevice() {
  static const DeviceApi* const devices = [] {
    const int count = CountDevices();
    return count > 0 ? new Cuda(count) : nullptr;
  }();
  return devices;
}

}  // namespace fastllm::ops
