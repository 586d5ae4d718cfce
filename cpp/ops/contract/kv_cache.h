#pragma once

#include "ops/contract/common.h"

namespace fastllm::ops {

// One layer of the paged cache: k and v are each [num_blocks, num_kv_heads, block_size, head_dim] of dtype, each block
// contiguous. Token position p of a sequence lives in block table[p / block_size], row p % block_size.
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
  // Of a kI8 cache alone: a scale for each row, [num_blocks, num_kv_heads, block_size]. A row of K (or V) of a head is
  // written as round-to-even(x * (127 / amax)) with the scale amax / 127, amax its largest magnitude (below 1e-30 it
  // counts as 0), and an element stands for its integer times the scale. A row that holds a NaN or an infinity has an
  // infinite or NaN scale.
  float* k_row_scales = nullptr;
  float* v_row_scales = nullptr;
  // Elements of k (and of v) from the start of a block to that of the next. 0: blocks follow one another, which is all
  // that a device and a kI8 cache take; on the CPU the other layers' blocks may lie between.
  int64_t block_stride = 0;
};

static constexpr int64_t KvBlockStride(const KvCacheView& c) {
  return c.block_stride != 0 ? c.block_stride : int64_t{c.num_kv_heads} * c.block_size * c.head_dim;
}

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
