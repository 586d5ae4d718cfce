// What the launchers share. A launcher is the CUDA arm's function behind an op contract: host code that checks shapes,
// picks an instance and enqueues it on ctx.stream. It never synchronises and never allocates, so that it can be
// captured in a CUDA graph.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/contract/common.h"
#include "ops/table/op_table.h"

namespace fastllm::cuda {

inline cudaStream_t StreamOf(const ops::OpContext& ctx) { return static_cast<cudaStream_t>(ctx.stream); }

// Throws InternalError with the op's name if the launch just made was refused.
void CheckLaunch(const char* op);

// Facts of the current device, read once per device. Thread-safe.
struct DeviceFacts {
  int32_t multiprocessors = 0;
  int32_t compute_capability = 0;  // 90 for 9.0
};
const DeviceFacts& CurrentDevice();

// Lets a kernel use `bytes` of dynamic shared memory on the current device. Throws InternalError where it cannot.
void AllowSharedMemory(const void* kernel, int32_t bytes, const char* op);

inline bool Aligned16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

inline int32_t CeilDiv(int64_t a, int64_t b) { return static_cast<int32_t>((a + b - 1) / b); }

// One line of the op table.
template <typename Fn>
void AddOp(ops::OpTable& table, ops::OpId op, ops::DType dtype, const char* name, Fn fn, uint32_t features = 0,
           int32_t head_dim = 0) {
  table.Register(
      {op, ops::Device::kCuda, dtype, head_dim, features, /*priority=*/0, name, reinterpret_cast<ops::AnyFn>(fn)});
}

// One per file of launchers.
void RegisterRowOps(ops::OpTable& table);
void RegisterRopeOps(ops::OpTable& table);
void RegisterAttentionOps(ops::OpTable& table);
void RegisterSampleOps(ops::OpTable& table);
void RegisterStepOps(ops::OpTable& table);
void RegisterSkinnyLinearOps(ops::OpTable& table);
void RegisterFusedLinearOps(ops::OpTable& table);
void RegisterDenseLinearOps(ops::OpTable& table);
void RegisterFp8RowOps(ops::OpTable& table);
void RegisterFp8LinearOps(ops::OpTable& table);
void RegisterDenseFp8LinearOps(ops::OpTable& table);
void RegisterFlashInferOps(ops::OpTable& table);  // none in builds without FASTLLM_FLASHINFER

}  // namespace fastllm::cuda
