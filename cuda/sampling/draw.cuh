// Passes of the whole group over a row: exact selection by bisection, and the draw by inverting the distribution in id
// order. Neither sorts; both sum in a fixed order, so that a draw does not depend on the batch.
#pragma once

#include "cuda/sampling/row.cuh"

namespace fastllm::cuda {

template <bool kHeld, bool kCluster>
struct RowPass {
  RowGroup<kCluster> g;
  Exchange& x;
  RowSlice<kHeld> row;
  int turn = 0;

  // Number (or weight) of the tokens in play up to (key, id) in the order.
  __device__ double Measure(const Survivors& s, bool weight, uint32_t key, int32_t id) {
    double sum = 0.0;
    for (int32_t i = threadIdx.x; i < row.count; i += kSampleThreads) {
      const float v = row[i];
      if (!s.Has(v, row.begin + i)) continue;
      const uint32_t k = OrderedKey(v);
      if (k > key || (k == key && row.begin + i <= id)) sum += weight ? static_cast<double>(s.Weight(v)) : 1.0;
    }
    return GroupSum(g, x, turn, sum);
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
    double mine = 0.0;
    for (int32_t i = first + lane; i < last; i += 32) mine += weight(i);
    mine = WarpSum(mine);
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
    int32_t pick = -1;
    for (int32_t base = first; base < last; base += 32) {
      const float w = weight(base + lane);
      double sum = w;
      for (int d = 1; d < 32; d *= 2) {
        const double other = __shfl_up_sync(0xffffffffu, sum, d);
        if (lane >= d) sum += other;
      }
      const uint32_t heavy = __ballot_sync(0xffffffffu, w > 0.0f);
      if (heavy != 0) pick = row.begin + base + 31 - __clz(heavy);
      const uint32_t past = __ballot_sync(0xffffffffu, w > 0.0f && sum > left);
      if (past != 0) {
        pick = row.begin + base + __ffs(past) - 1;
        break;
      }
      left -= __shfl_sync(0xffffffffu, sum, 31);
    }
    if (lane == 0) *token = pick;
  }
};

}  // namespace fastllm::cuda
