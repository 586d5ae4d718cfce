#pragma once

#include "ops/contract/common.h"

namespace fastllm::ops {

// Rotary position embedding in place on q and k, by a table of cos and sin. NeoX pairing rotates element i with
// i + rotary_dim/2; GPT-J pairing (interleaved) rotates 2i with 2i+1. Elements past rotary_dim are untouched.
//   x'[i] = x[i] cos - x[j] sin,  x'[j] = x[j] cos + x[i] sin                 (Su et al. 2021)
struct RopeParams {
  void* q = nullptr;                   // [num_tokens, num_q_heads, head_dim], token stride q_stride
  void* k = nullptr;                   // [num_tokens, num_kv_heads, head_dim], token stride k_stride
  const float* cos_sin = nullptr;      // [max_position, rotary_dim]: rotary_dim/2 cosines, then as many sines
  const int32_t* positions = nullptr;  // [num_tokens], each in [0, max_position)
  int64_t q_stride = 0;
  int64_t k_stride = 0;
  int32_t num_tokens = 0;
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t rotary_dim = 0;
  bool interleaved = false;
};
using RopeFn = void (*)(const RopeParams&, const OpContext&);

}  // namespace fastllm::ops
