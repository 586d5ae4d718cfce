#pragma once

#include "ops/contract/kv_cache.h"

namespace fastllm::ops {

// What follows the QKV product, in one pass: per-head RMS norm of q and k (Qwen3; skipped where the weight is null),
// rotation of q and k (rope.h), K and V into the cache (kv_cache.h). q is changed in place; k and v are only read.
// A token with a negative slot has its q rotated and nothing written.
struct RopeKvWriteParams {
  KvCacheView cache;
  void* q = nullptr;                      // [num_tokens, num_q_heads, head_dim], token stride q_stride
  const void* k = nullptr;                // [num_tokens, num_kv_heads, head_dim], token stride k_stride
  const void* v = nullptr;                // [num_tokens, num_kv_heads, head_dim], token stride v_stride
  const void* q_norm_weight = nullptr;    // [head_dim] or null
  const void* k_norm_weight = nullptr;    // [head_dim] or null
  const float* cos_sin = nullptr;         // [max_position, rotary_dim]: rotary_dim/2 cosines, then as many sines
  const int32_t* positions = nullptr;     // [num_tokens], each in [0, max_position)
  const int64_t* slot_mapping = nullptr;  // [num_tokens]
  int64_t q_stride = 0;
  int64_t k_stride = 0;
  int64_t v_stride = 0;
  int32_t num_tokens = 0;
  int32_t num_q_heads = 0;
  int32_t rotary_dim = 0;
  float eps = 1e-6f;  // of the norms
  bool interleaved = false;
};
using RopeKvWriteFn = void (*)(const RopeKvWriteParams&, const OpContext&);

}  // namespace fastllm::ops
