// What every op contract shares. Contracts are plain structs over pointers: no tensor type, no allocation. All
// strides are in elements; a missing stride means contiguous. Pointers may not alias unless the contract says so.
#pragma once

#include <cstdint>

namespace fastllm::ops {

// The last two are of KV caches alone: contract/fp8.h, kv_cache.h.
enum class DType : uint8_t { kF32 = 0, kF16 = 1, kBF16 = 2, kF8E4M3 = 3, kI8 = 4 };

inline constexpr int64_t DTypeSize(DType t) {
  return t == DType::kF32 ? 4 : t == DType::kF8E4M3 || t == DType::kI8 ? 1 : 2;
}

// Where an op runs and on what. stream is a cudaStream_t on CUDA, null on the CPU. num_threads is the CPU team.
struct OpContext {
  void* stream = nullptr;
  int32_t num_threads = 1;
};

}  // namespace fastllm::ops
