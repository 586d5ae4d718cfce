// Passes of the whole group over a row: exact selection by bisection, and the draw by inverting the distribution in id
// order. Neither sorts; both sum in a fixed order, so that a draw does not depend on the batch.
#pragma once

#include "cuda/sampling/row.cuh"

namespace fastllm::cuda {

// Where `left` falls among the weights of a warp's lanes.
struct Located {
  int lane;    // first with weight whose inclusive sum exceeds left, else the last with weight, else -1
  bool found;  // the former
};

// Takes the weights before the found lane, or all, off left. Warp-wide.
__device__ __forceinline__ Located Locate(float w, double& left) {
  double sum = w;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const double other = __shfl_up_sync(0xffffffffu, sum, d);
    if ((threadIdx.x & 31) >= d) sum += other;
  }
  const uint32_t heavy = __ballot_sync(0xffffffffu, w > 0.0f);
  const uint32_t past = __ballot_sync(0xffffffffu, w > 0.0f && sum > left);
  const int lane = past != 0 ? __ffs(past) - 1 : heavy != 0 ? 31 - __clz(heavy) : -1;
  left -= __shfl_sync(0xffffffffu, past != 0 ? sum - w : sum, past != 0 ? lane : 31);
  return {lane, past != 0};
}

template <bool kHeld, bool kCluster>
struct RowPass {
  RowGroup<kCluster> g;
  Exchange& x;
  RowSlice<kHeld> row;
  int turn = 0;

  // Number (or weight) of the tokens in play up to (key, id) in the order.
  __device__ double Measure(const Survivors& s, bool weight, uint32_t key, int32_t id) {
    float sum = 0.0f;  // over a few dozen tokens; the sums of those are added in float64
#pragma unroll 4
    for (int32_t i = threadIdx.x; i < row.count; i += kSampleThreads) {
      const float v = row[i];
      const uint32_t k = OrderedKey(v);
      const bool has = s.Has(v, row.begin + i) && (k > key || (k == key && row.begin + i <= id));
      if (has) sum += weight ? s.Weight(v) : 1.0f;
    }
    return GroupSum(g, x, turn, static_cast<double>(sum));
  }

  // Cuts s after the shortest run of the order whose measure reaches target; leaves it where none does.
  __device__ void Cut(Survivors& s, bool weight, double target, int32_t vocab) {
    uint32_t key = 0;
    for (int bit = 31; bit >= 0; --bit) {
      const uint32_t candidate = key | 1u << bit;
      if (Measure(s, weight, candidate, INT32_MAX) >= target) key = candidate;
    }
    if (key == 0) return;
    int32_t lo = -1, hi = vocab - 1;  // the cut id is in (lo, hi]
    while (hi - lo > 1) {
      const int32_t mid = lo + (hi - lo) / 2;
      if (Measure(s, weight, key, mid) >= target) {
        hi = mid;
      } else {
        lo = mid;
      }
    }
    s.cut_key = key;
    s.cut_id = hi;
  }

  // The token in play whose cumulative weight, in id order, first exceeds u of the whole. Written by the thread that
  // finds it.
  __device__ void Draw(const Survivors& s, double u, int32_t* token) {
    const int lane = threadIdx.x & 31;
    const int warp = threadIdx.x >> 5;
    const int32_t share = (row.count + kSampleWarps * 32 - 1) / (kSampleWarps * 32) * 32;
    const int32_t first = min(warp * share, row.count);
    const int32_t last = min(first + share, row.count);
    const auto weight = [&](int32_t i) {
      const float v = i < last ? row[i] : -INFINITY;
      return s.Has(v, row.begin + i) ? s.Weight(v) : 0.0f;
    };
    float part = 0.0f;
#pragma unroll 4
    for (int32_t i = first + lane; i < last; i += 32) part += weight(i);
    const double mine = WarpSum(static_cast<double>(part));
    double* const warps = x.warp[turn];
    if (lane == 0) warps[warp] = mine;
    __syncthreads();
    double block = 0.0;
    for (int w = 0; w < kSampleWarps; ++w) block += warps[w];
    const double* all = AllGather(g, x, turn, block);
    double total = 0.0;
    for (int r = 0; r < g.kSize; ++r) total += Gathered(all, r);
    double left = u * total;
    // The last place with weight takes what rounding carries past the end.
    int chosen = -1;
    double before = 0.0;
    for (int r = 0; r < g.kSize; ++r) {
      if (Gathered(all, r) <= 0.0) continue;
      if (chosen >= 0) left -= before;
      chosen = r;
      before = Gathered(all, r);
      if (left < before) break;
    }
    if (chosen != g.rank) return;
    chosen = -1;
    for (int w = 0; w < kSampleWarps; ++w) {
      if (warps[w] <= 0.0) continue;
      if (chosen >= 0) left -= before;
      chosen = w;
      before = warps[w];
      if (left < before) break;
    }
    if (chosen != warp) return;
    // The warp's share in 32 runs of neighbours, one a lane: which run, then which token of it. Lanes start at
    // different places of their runs, out of each other's banks.
    const int32_t length = share / 32;
    const int32_t mine_first = first + lane * length;
    float run = 0.0f;
    for (int32_t j = 0; j < length; ++j) run += weight(mine_first + (j + lane) % length);
    const Located at = Locate(run, left);
    if (!at.found) left = 1e300;
    int32_t pick = -1;
    for (int32_t base = 0; base < length; base += 32) {
      const int32_t i = first + at.lane * length + base;
      const Located here = Locate(base + lane < length ? weight(i + lane) : 0.0f, left);
      if (here.lane >= 0) pick = row.begin + i + here.lane;
      if (here.found) break;
    }
    if (lane == 0) *token = pick;
  }
};

}  // namespace fastllm::cuda
