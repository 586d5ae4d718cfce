// The common case of top_k and top_p: few tokens survive. A histogram over equal steps of the logit finds how far down
// the survivors reach, the tokens above are gathered in the first block, and that block sorts them.
#pragma once

#include "cuda/sampling/candidate_store.cuh"

namespace fastllm::cuda {

// Counts (and weighs, where top_p alone limits) the tokens in play by step, over the whole group. Returns their weight,
// or 0 where it is not asked for.
template <bool kHeld, bool kCluster>
__device__ double FillSteps(RowPass<kHeld, kCluster>& pass, CandidateStore& c, const Survivors& s,
                            const StepScale& steps, bool weigh) {
  for (int i = threadIdx.x; i < kSteps; i += kSampleThreads) c.count[i] = c.weight[i] = 0;
  __syncthreads();
  float sum = 0.0f;
#pragma unroll 4
  for (int32_t i = threadIdx.x; i < pass.row.count; i += kSampleThreads) {
    const float v = pass.row[i];
    if (!(v >= s.floor)) continue;
    const int step = steps.Of(v);
    atomicAdd(&c.count[step], 1u);
    if (weigh) {
      const float w = s.Weight(v);
      const auto fixed = static_cast<uint32_t>(w * 131072.0f);
      if (fixed != 0) atomicAdd(&c.weight[step], fixed);
      sum += w;
    }
  }
  pass.g.Sync();
  for (int i = threadIdx.x; i < kSteps; i += kSampleThreads) {
    uint32_t count = 0;
    double weight = 0.0;
    for (int r = 0; r < pass.g.kSize; ++r) {
      count += *pass.g.Remote(&c.count[i], r);
      if (weigh) weight += *pass.g.Remote(&c.weight[i], r);
    }
    c.total_count[i] = count;
    c.total_weight[i] = weight / 131072.0;
  }
  __syncthreads();
  return weigh ? GroupSum(pass.g, pass.x, pass.turn, static_cast<double>(sum)) : 0.0;
}

// Last step that has to be gathered for top_k tokens or (top_k 0) the target weight; -1 where that would be too many
// tokens. Block-wide.
__device__ inline int LastStep(CandidateStore& c, double top_k, double target) {
  constexpr int kEach = kSteps / 32;
  if (threadIdx.x < 32) {
    double count = 0.0, weight = 0.0;
    for (int j = 0; j < kEach; ++j) {
      count += c.total_count[threadIdx.x * kEach + j];
      weight += c.total_weight[threadIdx.x * kEach + j];
    }
    const double own_count = count, own_weight = weight;
    for (int d = 1; d < 32; d *= 2) {
      const double n = __shfl_up_sync(0xffffffffu, count, d), w = __shfl_up_sync(0xffffffffu, weight, d);
      if (threadIdx.x >= d) {
        count += n;
        weight += w;
      }
    }
    count -= own_count;
    weight -= own_weight;
    int32_t last = kSteps - 1, reached = 0;
    double tokens = 0.0;
    for (int j = 0; j < kEach && reached == 0; ++j) {
      count += c.total_count[threadIdx.x * kEach + j];
      weight += c.total_weight[threadIdx.x * kEach + j];
      if (top_k > 0.0 ? count >= top_k : weight >= target) {
        last = threadIdx.x * kEach + j;
        reached = 1;
      }
    }
    tokens = count;
    const uint32_t who = __ballot_sync(0xffffffffu, reached != 0);
    const int from = who != 0 ? __ffs(who) - 1 : 31;
    last = __shfl_sync(0xffffffffu, last, from);
    tokens = __shfl_sync(0xffffffffu, tokens, from);
    if (threadIdx.x == 0) c.first = tokens <= kMaxCandidates ? last : -1;
  }
  __syncthreads();
  return c.first;
}

// Puts the tokens of steps [0, last] into the first block's keys.
template <bool kHeld, bool kCluster>
__device__ void GatherCandidates(RowPass<kHeld, kCluster>& pass, CandidateStore& c, const Survivors& s,
                                 const StepScale& steps, int last) {
  const int lane = threadIdx.x & 31;
  if (threadIdx.x == 0) c.gathered = 0;
  pass.g.Sync();
  int32_t* const count = pass.g.Remote(&c.gathered, 0);
  uint64_t* const keys = pass.g.Remote(c.keys, 0);
  for (int32_t base = 0; base < pass.row.count; base += kSampleThreads) {
    const int32_t i = base + threadIdx.x;
    const float v = i < pass.row.count ? pass.row[i] : -INFINITY;
    const bool take = s.Has(v, pass.row.begin + i) && steps.Of(v) <= last;
    const uint32_t mask = __ballot_sync(0xffffffffu, take);
    if (mask == 0) continue;
    int32_t at = 0;
    if (lane == 0) at = atomicAdd(count, __popc(mask));
    at = __shfl_sync(0xffffffffu, at, 0) + __popc(mask & ((1u << lane) - 1));
    if (take) keys[at] = CandidateKey(v, pass.row.begin + i);
  }
  pass.g.Sync();
}

}  // namespace fastllm::cuda
