// One row of logits as sampling sees it: a slice per block, bans applied, tokens ordered by logit and then by lower id.
#pragma once

#include <cfloat>
#include <cstdint>

#include "cuda/sampling/row_group.cuh"
#include "ops/contract/sampling.h"

namespace fastllm::cuda {

// A number that orders as the float does; -0 and +0 are one.
__device__ __forceinline__ uint32_t OrderedKey(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float FromOrderedKey(uint32_t key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// The slice [begin, begin + count) of a row. kHeld: a copy in shared memory, bans written into it. Otherwise the logits
// where they are, and a bit per banned token.
template <bool kHeld>
struct RowSlice {
  const float* x;
  const uint32_t* banned;  // null: none
  int32_t begin;
  int32_t count;

  __device__ __forceinline__ float operator[](int32_t i) const {
    if constexpr (!kHeld) {
      if (banned != nullptr && (banned[i >> 5] >> (i & 31) & 1u) != 0) return -INFINITY;
    }
    return x[i];
  }
};

// What one pass over a slice, and then over the row, finds out.
struct RowFacts {
  float max;        // with bans
  int32_t argmax;   // lowest id that has it; -1: no token above -inf
  float sum;        // of the finite logits
  int32_t finite;   // how many
  int32_t refused;  // 1: a NaN or nothing finite among the raw logits
  int32_t raw_finite;
};

__device__ __forceinline__ void Fold(RowFacts& a, const RowFacts& b) {
  if (b.argmax >= 0 && (a.argmax < 0 || b.max > a.max || (b.max == a.max && b.argmax < a.argmax))) {
    a.max = b.max;
    a.argmax = b.argmax;
  }
  a.sum += b.sum;
  a.finite += b.finite;
  a.refused |= b.refused;
  a.raw_finite |= b.raw_finite;
}

__device__ __forceinline__ RowFacts ShuffleXor(const RowFacts& f, int d) {
  return {__shfl_xor_sync(0xffffffffu, f.max, d),     __shfl_xor_sync(0xffffffffu, f.argmax, d),
          __shfl_xor_sync(0xffffffffu, f.sum, d),     __shfl_xor_sync(0xffffffffu, f.finite, d),
          __shfl_xor_sync(0xffffffffu, f.refused, d), __shfl_xor_sync(0xffffffffu, f.raw_finite, d)};
}

// Adds token `id` with logit v (bans applied).
__device__ __forceinline__ void AddToken(RowFacts& f, float v, int32_t id) {
  if (v > f.max) {
    f.max = v;
    f.argmax = id;
  }
  if (fabsf(v) <= FLT_MAX) {
    f.sum += v;
    ++f.finite;
  }
}

// Adds what a raw logit says of its row.
__device__ __forceinline__ void AddRaw(RowFacts& f, float v) {
  if (v != v) f.refused = 1;
  if (fabsf(v) <= FLT_MAX) f.raw_finite = 1;
}

// Facts of the whole row, in every thread, from those of each thread. Each thread saw its tokens in rising order.
template <bool kCluster>
__device__ RowFacts ShareFacts(const RowGroup<kCluster>& g, Exchange& x, int& turn, RowFacts f, RowFacts* warp_facts) {
  for (int d = 16; d > 0; d /= 2) Fold(f, ShuffleXor(f, d));
  if ((threadIdx.x & 31) == 0) warp_facts[threadIdx.x >> 5] = f;
  __syncthreads();
  RowFacts block = warp_facts[0];
  for (int w = 1; w < kSampleWarps; ++w) Fold(block, warp_facts[w]);
  const RowFacts* all = AllGather(g, x, turn, block);
  RowFacts total = Gathered(all, 0);
  for (int r = 1; r < g.kSize; ++r) Fold(total, Gathered(all, r));
  return total;
}

// Which tokens are in play: those of at least `floor`, up to the cut in the order (logit, then lower id).
struct Survivors {
  float floor;
  uint32_t cut_key = 0;  // 0: no cut
  int32_t cut_id = 0;
  float max = 0.0f;
  float inverse_temperature = 1.0f;

  __device__ __forceinline__ bool Has(float v, int32_t id) const {
    if (!(v >= floor)) return false;
    if (cut_key == 0) return true;
    const uint32_t key = OrderedKey(v);
    return key > cut_key || (key == cut_key && id <= cut_id);
  }
  // Weight of a token in play.
  __device__ __forceinline__ float Weight(float v) const {
    return max == INFINITY ? 1.0f : expf((v - max) * inverse_temperature);
  }
};

}  // namespace fastllm::cuda
