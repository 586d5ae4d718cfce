// Writing to a KV cache of 8-bit integers.
#pragma once

#include "ops/contract/kv_cache.h"

namespace fastllm::ops::cpu {

// n values to integers by the rule of kv_cache.h; returns the scale. The same bits in every arm.
float QuantizeCacheRow(const float* x, int32_t n, int8_t* q);

// One token's K or V, [num_kv_heads, head_dim], into its slot of `to`, with its scales.
void WriteInt8Heads(const KvCacheView& cache, const float* from, int8_t* to, float* scales, int64_t slot);

}  // namespace fastllm::ops::cpu
