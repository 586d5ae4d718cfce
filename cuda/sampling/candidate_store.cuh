// The candidates of one row in one block: their store, their sort, and sums over them. See candidates.cuh.
#pragma once

#include "cuda/sampling/draw.cuh"

namespace fastllm::cuda {

inline constexpr int kSteps = 256;
inline constexpr int kMaxCandidates = 2048;

// Shared memory of one block.
struct CandidateStore {
  uint32_t count[kSteps];
  uint32_t weight[kSteps];  // of 2^-17 of the largest token's
  uint32_t total_count[kSteps];
  double total_weight[kSteps];
  uint64_t keys[kMaxCandidates];  // ascending: logit falling, then id rising
  double sums[kSampleWarps];
  int32_t gathered;
  int32_t first;
  int32_t last_heavy;
};

// Steps of the histogram: the span from the maximum to as far below the mean again, which holds for any temperature and
// any scale of logits; everything lower is in the last step.
struct StepScale {
  float max;
  float scale;

  __device__ __forceinline__ int Of(float v) const {
    return min(kSteps - 1, static_cast<int>(fminf((max - v) * scale, static_cast<float>(kSteps))));
  }
};

__device__ __forceinline__ uint64_t CandidateKey(float v, int32_t id) {
  return static_cast<uint64_t>(~OrderedKey(v)) << 32 | static_cast<uint32_t>(id);
}
__device__ __forceinline__ float CandidateValue(uint64_t key) {
  return FromOrderedKey(~static_cast<uint32_t>(key >> 32));
}

// Sorts keys[0, n) ascending; n a power of two. Block-wide (bitonic, Batcher 1968).
__device__ inline void SortKeys(uint64_t* keys, int n) {
  for (int size = 2; size <= n; size *= 2) {
    for (int stride = size / 2; stride > 0; stride /= 2) {
      __syncthreads();
      for (int i = threadIdx.x; i < n / 2; i += kSampleThreads) {
        const int a = 2 * i - (i & (stride - 1));
        const int b = a + stride;
        const bool up = (a & size) == 0;
        const uint64_t ka = keys[a], kb = keys[b];
        if ((ka > kb) == up) {
          keys[a] = kb;
          keys[b] = ka;
        }
      }
    }
  }
  __syncthreads();
}

__device__ inline int PowerOfTwo(int n) {
  int p = 2;
  while (p < n) p *= 2;
  return p;
}

// What a scan over the candidates found.
struct ScanResult {
  double total;
  int32_t first;  // first i whose inclusive sum passes, else the last i with weight, else -1
};

// Sums weight(i) over i in [0, n), n <= kMaxCandidates, and finds the first i whose inclusive sum satisfies
// passes(sum). Block-wide.
template <typename Weight, typename Passes>
__device__ ScanResult ScanCandidates(CandidateStore& c, int n, const Weight& weight, const Passes& passes) {
  constexpr int kEach = kMaxCandidates / kSampleThreads;
  const int lane = threadIdx.x & 31;
  double own = 0.0;
  for (int j = 0; j < kEach; ++j) {
    const int i = threadIdx.x * kEach + j;
    if (i < n) own += weight(i);
  }
  double sum = own;
  for (int d = 1; d < 32; d *= 2) {
    const double other = __shfl_up_sync(0xffffffffu, sum, d);
    if (lane >= d) sum += other;
  }
  __syncthreads();
  if (lane == 31) c.sums[threadIdx.x >> 5] = sum;
  if (threadIdx.x == 0) {
    c.first = INT32_MAX;
    c.last_heavy = -1;
  }
  __syncthreads();
  double before = 0.0, total = 0.0;
  for (int w = 0; w < kSampleWarps; ++w) {
    if (w < static_cast<int>(threadIdx.x >> 5)) before += c.sums[w];
    total += c.sums[w];
  }
  double with = before + sum - own;
  int32_t first = INT32_MAX, heavy = -1;
  for (int j = 0; j < kEach; ++j) {
    const int i = threadIdx.x * kEach + j;
    if (i >= n) break;
    const double w = weight(i);
    with += w;
    if (w > 0.0) heavy = i;
    if (passes(with)) first = min(first, i);
  }
  first = __reduce_min_sync(0xffffffffu, first);
  heavy = __reduce_max_sync(0xffffffffu, heavy);
  if (lane == 0) {
    atomicMin(&c.first, first);
    atomicMax(&c.last_heavy, heavy);
  }
  __syncthreads();
  return {total, c.first != INT32_MAX ? c.first : c.last_heavy};
}

}  // namespace fastllm::cuda
