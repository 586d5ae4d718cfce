// FlashInfer's attention kernels behind plain values: what stands between its headers (C++17, CUTLASS) and ours. Every
// pointer is on the device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace fastllm::cuda {

struct FlashInferBatch {
  const void* q = nullptr;  // bfloat16, as are k, v and out
  const void* k = nullptr;  // [num_blocks, num_kv_heads, page_size, head_dim]
  const void* v = nullptr;
  void* out = nullptr;                   // [num_tokens, num_q_heads, head_dim]
  const int32_t* query_start = nullptr;  // [num_seqs + 1]
  const int32_t* block_table = nullptr;
  const int32_t* page_start = nullptr;  // [num_seqs + 1], in the block table
  const int32_t* last_page = nullptr;   // [num_seqs]
  int64_t q_stride = 0;
  int32_t num_tokens = 0;
  int32_t num_seqs = 0;
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t page_size = 0;
  float scale = 1.0f;
};

struct FlashInferDecode {
  const int32_t* requests = nullptr;  // [works]
  const int32_t* q_tiles = nullptr;
  const int32_t* kv_tiles = nullptr;
  const int32_t* out_start = nullptr;    // [num_seqs + 1]
  const int32_t* merge_start = nullptr;  // [num_tokens + 1]
  const int32_t* chunk = nullptr;
  const int32_t* rows = nullptr;
  const bool* valid = nullptr;  // [works]
  int32_t works = 0;
  void* partial_out = nullptr;  // null: nothing is cut
  float* partial_lse = nullptr;
};

struct FlashInferPrefill {
  const int32_t* item_start = nullptr;  // [multiprocessors + 1]
  const int32_t* heads = nullptr;       // [items]
  const int32_t* tiles = nullptr;
  const int32_t* q_start = nullptr;
  const int32_t* pages = nullptr;
  const int32_t* q_len = nullptr;
  const int32_t* kv_len = nullptr;
  const int32_t* seqs = nullptr;
};

// Enqueue on the stream; the first error that CUDA reported.
template <int kHeadDim>
cudaError_t RunFlashInferDecode(const FlashInferBatch& b, const FlashInferDecode& d, cudaStream_t stream);
template <int kHeadDim>
cudaError_t RunFlashInferPrefill(const FlashInferBatch& b, const FlashInferPrefill& p, cudaStream_t stream);

}  // namespace fastllm::cuda
