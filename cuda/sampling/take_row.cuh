// How a block takes its slice of a row: a copy in shared memory, or the row where it is; penalties and bans applied.
#pragma once

#include "cuda/sampling/row.cuh"

namespace fastllm::cuda {

// Changes the held slice as the row's penalties and bans say. Ends with a barrier.
__device__ inline void ChangeSlice(const ops::SampleParams& p, int32_t r, const RowPenalty& penalty, int32_t begin,
                                   int32_t count, float* held) {
  for (int32_t b = threadIdx.x; b < penalty.num_biases; b += kSampleThreads) {
    const int32_t id = penalty.biases[b].id - begin;
    if (id >= 0 && id < count) held[id] += penalty.biases[b].bias;
  }
  if (penalty.counts != nullptr) {
    __syncthreads();
    for (int32_t i = threadIdx.x; i < count; i += kSampleThreads) {
      const ops::TokenTally tally = penalty.counts[begin + i];
      if (tally != 0) held[i] = penalty.Penalize(held[i], tally);
    }
  }
  __syncthreads();
  if (p.ban_start == nullptr) return;
  for (int32_t b = p.ban_start[r] + threadIdx.x; b < p.ban_start[r + 1]; b += kSampleThreads) {
    const int32_t id = p.ban_ids[b] - begin;
    if (id >= 0 && id < count) held[id] = -INFINITY;
  }
  __syncthreads();
}

// Copies the slice into shared memory, penalties and bans applied, and finds its facts. Ends with a barrier.
__device__ inline RowSlice<true> HoldSlice(const ops::SampleParams& p, int32_t r, const float* logits, int32_t begin,
                                           int32_t count, float* held, RowFacts& facts) {
  constexpr int kBatch = 4;  // loads in flight per thread
  const float* from = logits + begin;
  const RowPenalty penalty(p, r);
  const bool changed = penalty.Any() || (p.ban_start != nullptr && p.ban_start[r] < p.ban_start[r + 1]);
  const auto add = [&](float v, int32_t i) {
    AddRaw(facts, v);
    if (!changed) AddToken(facts, v, begin + i);
  };
  int32_t done = 0;
  if (reinterpret_cast<uint64_t>(from) % 16 == 0) {
    const int32_t fours = count / 4;
    for (int32_t base = threadIdx.x; base < fours; base += kBatch * kSampleThreads) {
      float4 v[kBatch];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const int32_t i = base + b * kSampleThreads;
        if (i < fours) v[b] = reinterpret_cast<const float4*>(from)[i];
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const int32_t i = base + b * kSampleThreads;
        if (i >= fours) break;
        reinterpret_cast<float4*>(held)[i] = v[b];
        add(v[b].x, 4 * i);
        add(v[b].y, 4 * i + 1);
        add(v[b].z, 4 * i + 2);
        add(v[b].w, 4 * i + 3);
      }
    }
    done = fours * 4;
  }
  for (int32_t i = done + threadIdx.x; i < count; i += kSampleThreads) {
    held[i] = from[i];
    add(held[i], i);
  }
  __syncthreads();
  if (changed) {
    ChangeSlice(p, r, penalty, begin, count, held);
    for (int32_t i = threadIdx.x; i < count; i += kSampleThreads) AddToken(facts, held[i], begin + i);
  }
  return {held, nullptr, begin, count};
}

// The whole row where it is, with a bit per banned token in shared memory, and its facts.
__device__ inline RowSlice<false> ViewRow(const ops::SampleParams& p, int32_t r, const float* logits, uint32_t* banned,
                                          RowPenalty* penalty, RowFacts& facts) {
  if (threadIdx.x == 0) *penalty = RowPenalty(p, r);
  __syncthreads();
  const bool any = p.ban_start != nullptr && p.ban_start[r] < p.ban_start[r + 1];
  if (any) {
    for (int32_t i = threadIdx.x; i < (p.vocab + 31) / 32; i += kSampleThreads) banned[i] = 0;
    __syncthreads();
    for (int32_t b = p.ban_start[r] + threadIdx.x; b < p.ban_start[r + 1]; b += kSampleThreads) {
      const int32_t id = p.ban_ids[b];
      if (id >= 0 && id < p.vocab) atomicOr(&banned[id >> 5], 1u << (id & 31));
    }
    __syncthreads();
  }
  const RowSlice<false> row{logits, any ? banned : nullptr, 0, p.vocab, penalty->Any() ? penalty : nullptr};
  for (int32_t i = threadIdx.x; i < p.vocab; i += kSampleThreads) {
    AddRaw(facts, logits[i]);
    AddToken(facts, row[i], i);
  }
  return row;
}

}  // namespace fastllm::cuda
