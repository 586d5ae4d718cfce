#pragma once

#include "ops/contract/common.h"

namespace fastllm::ops {

// One layer of the paged cache: k and v are each [num_blocks, num_kv_heads, block_size, head_dim] of dtype, contiguous.
// Token position p of a sequence lives in block table[p / block_size], row p % block_size.
struct KvCacheView {
  void* k = nullptr;
  void* v = nullptr;
  int32_t num_blocks = 0;
  int32_t num_kv_heads = 0;
  int32_t block_size = 0;
  int32_t head_dim = 0;
  DType dtype = DType::kF32;  // of the elements; K and V are rounded to it when they are written
  // Of a kF8E4M3 cache alone: it holds e4m3(k * (1 / k_scale)), and a value of it stands for k_scale times as much.
  float k_scale = 1.0f;
  float v_scale = 1.0f;
};

// cache[slot_mapping[t]] = (k[t], v[t]); slot = block * block_size + row. A negative slot is skipped.
struct KvWriteParams {
  KvCacheView cache;
  const void* k = nullptr;                // [num_tokens, num_kv_heads, head_dim], token stride k_stride
  const void* v = nullptr;                // [num_tokens, num_kv_heads, head_dim], token stride v_stride
  const int64_t* slot_mapping = nullptr;  // [num_tokens]
  int64_t k_stride = 0;
  int64_t v_stride = 0;
  int32_t num_tokens = 0;
};
using KvWriteFn = void (*)(const KvWriteParams&, const OpContext&);

}  // namespace fastllm::ops
