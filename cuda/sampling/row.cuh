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

// What a PenaltyRow does to a row's logits, in float64 rounded once, as the CPU arm does.
struct RowPenalty {
  const ops::TokenTally* counts;  // of the row; null: no penalties
  const ops::TokenBias* biases;
  int32_t num_biases;
  float repetition, frequency, presence;

  __device__ explicit RowPenalty(const ops::SampleParams& p, int32_t r)
      : counts(nullptr), biases(nullptr), num_biases(0), repetition(1.0f), frequency(0.0f), presence(0.0f) {
    if (p.penalties == nullptr) return;
    const ops::PenaltyRow row = p.penalties[r];
    if (row.count_row >= 0) counts = p.counts + static_cast<int64_t>(row.count_row) * p.vocab;
    biases = p.biases + row.bias_begin;
    num_biases = row.bias_end - row.bias_begin;
    repetition = row.repetition_penalty;
    frequency = row.frequency_penalty;
    presence = row.presence_penalty;
  }
  __device__ __forceinline__ bool Any() const { return counts != nullptr || num_biases > 0; }

  // A logit with its bias.
  __device__ __forceinline__ float Penalize(float x, ops::TokenTally tally) const {
    if (tally == 0) return x;
    const int outputs = tally & ops::kMostCounted;
    const double v = x;
    const double scaled = v * (v > 0.0 ? 1.0 / static_cast<double>(repetition) : static_cast<double>(repetition));
    // Products and sums rounded one by one, as the CPU's are.
    const double taken = __dadd_rn(__dmul_rn(static_cast<double>(frequency), static_cast<double>(outputs)),
                                   outputs > 0 ? static_cast<double>(presence) : 0.0);
    return static_cast<float>(__dadd_rn(scaled, -taken));
  }
  // A logit as the model left it. For rows that are read where they are: a walk over the biases for each.
  __device__ float Of(float x, int32_t id) const {
    for (int32_t b = 0; b < num_biases; ++b) x += biases[b].id == id ? biases[b].bias : 0.0f;
    return counts != nullptr ? Penalize(x, counts[id]) : x;
  }
};

// The slice [begin, begin + count) of a row. kHeld: a copy in shared memory, penalties and bans written into it.
// Otherwise the logits where they are, their penalties, and a bit per banned token.
template <bool kHeld>
struct RowSlice {
  const float* x;
  const uint32_t* banned;  // null: none
  int32_t begin;
  int32_t count;
  const RowPenalty* penalty = nullptr;  // in shared memory; null: none

  __device__ __forceinline__ float operator[](int32_t i) const {
    if constexpr (!kHeld) {
      if (banned != nullptr && (banned[i >> 5] >> (i & 31) & 1u) != 0) return -INFINITY;
      if (penalty != nullptr) return penalty->Of(x[i], i);
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
