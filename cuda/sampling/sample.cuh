// sample (contract/sampling.h) on the device: one cluster of blocks per row, the row held in their shared memory, so
// that logits are read from memory once. Without clusters (before sm_90) one block per row reads the logits where they
// are.
#pragma once

#include "cuda/sampling/candidates.cuh"
#include "cuda/sampling/philox.cuh"
#include "cuda/sampling/take_row.cuh"

namespace fastllm::cuda {

struct SampleShared {
  Exchange exchange;
  RowFacts warp_facts[kSampleWarps];
  CandidateStore candidates;
  alignas(16) char penalty[sizeof(RowPenalty)];
};

// The smallest float32 that is at least max + T log(min_p): exp((x - max) / T) >= min_p without an exp.
__device__ inline float MinPFloor(const ops::SampleRow& row, float max) {
  if (max == INFINITY) return INFINITY;
  if (!(row.min_p > 0.0f)) return -FLT_MAX;
  const double min_p = fmin(1.0, static_cast<double>(row.min_p));
  const double exact = static_cast<double>(max) + static_cast<double>(row.temperature) * log(min_p);
  if (exact <= -FLT_MAX) return -FLT_MAX;
  return __double2float_ru(exact);
}

// How many of the n sorted candidates survive; -1 where the weight that top_p needs was not all gathered. First block.
__device__ inline int32_t KeepCandidates(CandidateStore& c, const Survivors& s, const ops::SampleRow& row, bool limit_k,
                                         bool limit_p, double total, bool all_gathered) {
  const int32_t n = c.gathered;
  const int32_t padded = PowerOfTwo(n);
  for (int32_t i = n + threadIdx.x; i < padded; i += kSampleThreads) c.keys[i] = ~uint64_t{0};
  SortKeys(c.keys, padded);
  const auto weight = [&](int i) { return static_cast<double>(s.Weight(CandidateValue(c.keys[i]))); };
  int32_t kept = limit_k ? min(n, row.top_k) : n;
  if (!limit_p) return kept;
  if (limit_k) total = ScanCandidates(c, kept, weight, [](double) { return false; }).total;
  const double target = static_cast<double>(row.top_p) * total;
  const ScanResult cut = ScanCandidates(c, kept, weight, [target](double sum) { return sum >= target; });
  if (c.first == INT32_MAX) return limit_k || all_gathered ? kept : -1;
  return cut.first + 1;
}

// Draws among the first `kept` candidates, in id order. First block.
__device__ inline void DrawCandidates(CandidateStore& c, const Survivors& s, int32_t kept, double u, int32_t* token) {
  const int32_t padded = PowerOfTwo(kept);
  for (int32_t i = threadIdx.x; i < padded; i += kSampleThreads) {
    const uint64_t key = c.keys[i];
    c.keys[i] = i < kept ? (key << 32 | key >> 32) : ~uint64_t{0};
  }
  SortKeys(c.keys, padded);
  const auto weight = [&](int i) {
    return static_cast<double>(s.Weight(FromOrderedKey(~static_cast<uint32_t>(c.keys[i]))));
  };
  const double left = u * ScanCandidates(c, kept, weight, [](double) { return false; }).total;
  const ScanResult pick = ScanCandidates(c, kept, weight, [left](double sum) { return sum > left; });
  if (threadIdx.x == 0) *token = pick.first < 0 ? -1 : static_cast<int32_t>(c.keys[pick.first] >> 32);
}

template <bool kHeld, bool kCluster>
__device__ void DrawFiltered(RowPass<kHeld, kCluster>& pass, CandidateStore& c, Survivors s, const ops::SampleRow& row,
                             const RowFacts& facts, int32_t vocab, double u, int32_t* token) {
  const bool limit_k = row.top_k > 0 && row.top_k < vocab;
  const bool limit_p = row.top_p < 1.0f;
  if (limit_k || limit_p) {
    const float span = 2.0f * (facts.max - facts.sum / static_cast<float>(max(facts.finite, 1)));
    const float scale = static_cast<float>(kSteps) / span;
    const StepScale steps{facts.max, span > 0.0f && scale < INFINITY ? scale : 0.0f};
    const double total = FillSteps(pass, c, s, steps, !limit_k);
    const int last = LastStep(c, limit_k ? row.top_k : 0.0, static_cast<double>(row.top_p) * total);
    if (last >= 0) {
      GatherCandidates(pass, c, s, steps, last);
      int32_t kept = 0;
      if (pass.g.rank == 0) kept = KeepCandidates(c, s, row, limit_k, limit_p, total, last == kSteps - 1);
      kept = Gathered(AllGather(pass.g, pass.x, pass.turn, kept), 0);
      if (kept >= 0) {
        if (pass.g.rank == 0) DrawCandidates(c, s, kept, u, token);
        return;
      }
    }
    if (limit_k && pass.Measure(s, false, 0, INT32_MAX) > row.top_k) pass.Cut(s, false, row.top_k, vocab);
    if (limit_p) {
      const double rest = pass.Measure(s, true, 0, INT32_MAX);
      pass.Cut(s, true, fmax(static_cast<double>(row.top_p) * rest, 1e-300), vocab);
    }
  }
  pass.Draw(s, u, token);
}

template <bool kCluster>
__global__ void __launch_bounds__(kSampleThreads) SampleKernel(const ops::SampleParams p, int32_t slice) {
  extern __shared__ __align__(16) char dynamic[];
  __shared__ SampleShared shared;
  const RowGroup<kCluster> g;
  const int32_t r = blockIdx.x / g.kSize;
  const float* logits = p.logits + r * p.logits_stride;
  const int32_t begin = min(g.rank * slice, p.vocab);
  RowFacts own{-INFINITY, -1, 0.0f, 0, 0, 0};
  const auto take = [&] {
    if constexpr (kCluster) {
      return HoldSlice(p, r, logits, begin, min(slice, p.vocab - begin), reinterpret_cast<float*>(dynamic), own);
    } else {
      return ViewRow(p, r, logits, reinterpret_cast<uint32_t*>(dynamic), reinterpret_cast<RowPenalty*>(shared.penalty),
                     own);
    }
  };
  const auto row = take();
  RowPass<kCluster, kCluster> pass{g, shared.exchange, row};
  const RowFacts facts = ShareFacts(g, shared.exchange, pass.turn, own, shared.warp_facts);
  const ops::SampleRow rule = p.rows[r];
  if (facts.refused != 0 || facts.raw_finite == 0 || facts.argmax < 0) {
    if (g.rank == 0 && threadIdx.x == 0) p.tokens[r] = -1;
  } else if (rule.temperature < ops::kGreedyTemperature) {
    if (g.rank == 0 && threadIdx.x == 0) p.tokens[r] = facts.argmax;
  } else {
    Survivors s{MinPFloor(rule, facts.max)};
    s.max = facts.max;
    s.inverse_temperature = 1.0f / rule.temperature;
    DrawFiltered(pass, shared.candidates, s, rule, facts, p.vocab, UniformDraw(rule.seed, rule.counter), p.tokens + r);
  }
  g.Sync();  // no block leaves while another may read its shared memory
}

}  // namespace fastllm::cuda
