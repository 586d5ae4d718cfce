// feed_tokens and keep_tokens (contract/feed.h), random_fill (contract/random_fill.h).
#pragma once

#include <cstdint>

#include "cuda/common/types.cuh"
#include "ops/contract/feed.h"
#include "ops/contract/random_fill.h"

namespace fastllm::cuda {

// Block 0 of the grid does the ids, block 1 + s the table of sequence s. What is outside its range gives 0.
static __global__ void FeedTokensKernel(const ops::FeedTokensParams p) {
  if (blockIdx.x == 0) {
    for (int32_t t = threadIdx.x; t < p.num_tokens; t += blockDim.x) {
      const int32_t planned = p.planned[t];
      const int32_t slot = -1 - planned;
      p.ids[t] = planned >= 0 ? planned : slot < p.num_slots ? p.last_tokens[slot] : 0;
    }
    return;
  }
  const int64_t s = blockIdx.x - 1;
  const int32_t width = min(*p.table_width, p.max_blocks);
  const int32_t* from = p.packed_table + s * width;
  int32_t* to = p.block_table + s * p.max_blocks;
  for (int32_t i = threadIdx.x; i < width; i += blockDim.x) to[i] = from[i];
}

static __global__ void KeepTokensKernel(const ops::KeepTokensParams p) {
  const int32_t r = blockIdx.x * blockDim.x + threadIdx.x;
  if (r >= p.num_rows) return;
  const int32_t slot = p.slots[r];
  const int32_t token = max(p.tokens[r], 0);
  if (slot >= 0 && slot < p.num_slots) p.last_tokens[slot] = token;
  if (p.counts == nullptr) return;
  const int32_t row = p.count_rows[r];
  if (row < 0 || row >= p.num_count_rows) return;
  ops::TokenTally& tally = p.counts[static_cast<int64_t>(row) * p.vocab + token];
  if ((tally & ops::kMostCounted) != ops::kMostCounted) ++tally;
}

// One block per segment.
static __global__ void CountTokensKernel(const ops::CountTokensParams p) {
  const ops::CountSegment s = p.segments[blockIdx.x];
  if (s.row < 0 || s.row >= p.num_count_rows) return;
  ops::TokenTally* const counts = p.counts + static_cast<int64_t>(s.row) * p.vocab;
  if (s.reset) {
    for (int32_t i = threadIdx.x; i < p.vocab; i += blockDim.x) counts[i] = 0;
    __syncthreads();
  }
  for (int32_t t = s.begin + threadIdx.x; t < s.end; t += blockDim.x) {
    const int32_t id = p.ids[t];
    if (id < 0 || id >= p.vocab) continue;
    const bool prompt = t < s.begin + s.num_prompt;
    ops::TokenTally seen = counts[id], wanted;
    do {
      wanted = seen;
      const bool full = (seen & ops::kMostCounted) == ops::kMostCounted;
      const auto next = static_cast<ops::TokenTally>(prompt ? seen | ops::kTallyInPrompt : full ? seen : seen + 1);
      seen = atomicCAS(counts + id, wanted, next);
    } while (seen != wanted);
  }
}

// SplitMix64's output function (Steele, Lea, Flood 2014), as on the CPU.
__device__ __forceinline__ uint64_t MixCounter(uint64_t z) {
  z += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

template <typename T>
__global__ void RandomFillKernel(T* out, uint64_t key, int64_t count, float mean, float scale) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    const uint64_t bits = MixCounter(key + static_cast<uint64_t>(i)) >> 40;
    // Two roundings, as the CPU arm does without fused multiply-add.
    const float u = __fadd_rn(__fmul_rn(static_cast<float>(bits), 0x1p-23f), -1.0f);
    out[i] = FromFloat<T>(__fadd_rn(mean, __fmul_rn(scale, u)));
  }
}

}  // namespace fastllm::cuda
