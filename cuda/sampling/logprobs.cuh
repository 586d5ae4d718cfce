// logprobs (contract/logprobs.h) on the device: one cluster of blocks per row, as in sample.cuh. The top tokens are
// found as the candidates of top_k are.
#pragma once

#include "cuda/sampling/sample.cuh"
#include "ops/contract/logprobs.h"

namespace fastllm::cuda {

// Turns a logit into its logprob.
struct LogSoftmax {
  double max, inverse_temperature;
  double log_sum;  // of exp((x - max) / T); of how many are +inf where max is

  __device__ __forceinline__ float operator()(float x) const {
    if (max == static_cast<double>(INFINITY)) return x == INFINITY ? static_cast<float>(-log_sum) : -INFINITY;
    return static_cast<float>((static_cast<double>(x) - max) * inverse_temperature - log_sum);
  }
};

template <bool kHeld, bool kCluster>
__device__ LogSoftmax Normalize(RowPass<kHeld, kCluster>& pass, float max, float temperature) {
  const double inverse = 1.0 / static_cast<double>(temperature);
  const auto inverse_float = static_cast<float>(inverse);
  double sum = 0.0;
  for (int32_t i = threadIdx.x; i < pass.row.count; i += kSampleThreads) {
    const float v = pass.row[i];
    sum += max == INFINITY ? (v == INFINITY ? 1.0f : 0.0f) : expf((v - max) * inverse_float);
  }
  return {static_cast<double>(max), inverse, log(GroupSum(pass.g, pass.x, pass.turn, sum))};
}

// The first `want` tokens of the order above -inf into the first block's keys, sorted; returns how many there are.
template <bool kHeld, bool kCluster>
__device__ int32_t GatherTops(RowPass<kHeld, kCluster>& pass, CandidateStore& c, const RowFacts& facts, int32_t want,
                              int32_t vocab) {
  Survivors s{-FLT_MAX};
  s.max = facts.max;
  const float span = 2.0f * (facts.max - facts.sum / static_cast<float>(max(facts.finite, 1)));
  const float scale = static_cast<float>(kSteps) / span;
  const StepScale steps{facts.max, span > 0.0f && scale < INFINITY ? scale : 0.0f};
  FillSteps(pass, c, s, steps, false);
  int last = LastStep(c, static_cast<double>(want), 0.0);
  if (last < 0) {  // many equal logits: cut by id, exactly
    pass.Cut(s, false, static_cast<double>(want), vocab);
    last = kSteps;  // every step: the cut decides
  }
  GatherCandidates(pass, c, s, steps, last);
  if (pass.g.rank == 0) {
    const int32_t padded = PowerOfTwo(c.gathered);
    for (int32_t i = c.gathered + threadIdx.x; i < padded; i += kSampleThreads) c.keys[i] = ~uint64_t{0};
    SortKeys(c.keys, padded);
  }
  return min(c.gathered, want);
}

__device__ inline void WriteTops(const ops::LogprobsParams& p, int64_t r, int32_t want, int32_t found,
                                 const CandidateStore& c, const LogSoftmax& logprob) {
  int32_t* const ids = p.top_ids + r * p.top_stride;
  float* const logprobs = p.top_logprobs + r * p.top_stride;
  for (int32_t i = threadIdx.x; i < found; i += kSampleThreads) {
    ids[i] = static_cast<int32_t>(c.keys[i] & 0xffffffffu);
    logprobs[i] = logprob(CandidateValue(c.keys[i]));
  }
  if (found == want || threadIdx.x > 0) return;
  const float* const logits = p.logits + r * p.logits_stride;
  for (int32_t id = 0; id < p.vocab && found < want; ++id) {  // seldom: fewer tokens than asked for are above -inf
    if (logits[id] != -INFINITY) continue;
    ids[found] = id;
    logprobs[found++] = -INFINITY;
  }
  for (; found < want; ++found) {
    ids[found] = -1;
    logprobs[found] = NAN;
  }
}

// For a row without a distribution.
__device__ inline void WriteNoLogprobs(const ops::LogprobsParams& p, int64_t r, const ops::LogprobsRow& ask) {
  if (threadIdx.x == 0 && ask.token >= 0) {
    p.token_logprobs[r] = NAN;
    p.token_ranks[r] = 0;
  }
  for (int32_t i = threadIdx.x; i < ask.top_k; i += kSampleThreads) {
    p.top_ids[r * p.top_stride + i] = -1;
    p.top_logprobs[r * p.top_stride + i] = NAN;
  }
  for (int32_t i = threadIdx.x; i < ask.ids.size; i += kSampleThreads) ask.id_logprobs[i] = NAN;
}

template <bool kHeld, bool kCluster>
__device__ void AnswerRow(RowPass<kHeld, kCluster>& pass, CandidateStore& c, const ops::LogprobsParams& p, int64_t r,
                          const ops::LogprobsRow& ask, const RowFacts& facts) {
  const float* const logits = p.logits + r * p.logits_stride;
  const bool first = pass.g.rank == 0;
  const LogSoftmax logprob = Normalize(pass, facts.max, ask.temperature);
  if (ask.token >= 0) {
    const bool in_row = ask.token < p.vocab;
    const float x = in_row ? logits[ask.token] : 0.0f;
    double above = 0.0;
    for (int32_t i = threadIdx.x; i < pass.row.count; i += kSampleThreads) above += pass.row[i] > x ? 1.0 : 0.0;
    above = GroupSum(pass.g, pass.x, pass.turn, above);
    if (first && threadIdx.x == 0) {
      p.token_logprobs[r] = in_row ? logprob(x) : NAN;
      p.token_ranks[r] = in_row ? 1 + static_cast<int32_t>(above) : 0;
    }
  }
  if (first) {
    for (int32_t i = threadIdx.x; i < ask.ids.size; i += kSampleThreads) {
      const int32_t id = ask.ids.data[i];
      ask.id_logprobs[i] = id >= 0 && id < p.vocab ? logprob(logits[id]) : NAN;
    }
  }
  if (ask.top_k <= 0) return;
  const int32_t found = GatherTops(pass, c, facts, min(ask.top_k, p.vocab), p.vocab);
  if (first) WriteTops(p, r, ask.top_k, found, c, logprob);
}

template <bool kCluster>
__global__ void __launch_bounds__(kSampleThreads) LogprobsKernel(const ops::LogprobsParams p, int32_t slice) {
  extern __shared__ __align__(16) char dynamic[];
  __shared__ SampleShared shared;
  const RowGroup<kCluster> g;
  const int64_t r = blockIdx.x / g.kSize;
  ops::LogprobsRow ask = p.rows[r];
  if (ask.token == ops::kDrawnToken) {
    ask.token = p.tokens[r];
    if (ask.token < 0) return;
  }
  if (ask.token < 0 && ask.top_k <= 0 && ask.ids.size <= 0) return;  // the whole group
  ops::SampleParams as_sampled;                                      // nothing banned, nothing penalised
  as_sampled.vocab = p.vocab;
  const float* logits = p.logits + r * p.logits_stride;
  const int32_t begin = min(g.rank * slice, p.vocab);
  RowFacts own{-INFINITY, -1, 0.0f, 0, 0, 0};
  const auto take = [&] {
    if constexpr (kCluster) {
      return HoldSlice(as_sampled, 0, logits, begin, min(slice, p.vocab - begin), reinterpret_cast<float*>(dynamic),
                       own);
    } else {
      return ViewRow(as_sampled, 0, logits, nullptr, reinterpret_cast<RowPenalty*>(shared.penalty), own);
    }
  };
  const auto row = take();
  RowPass<kCluster, kCluster> pass{g, shared.exchange, row};
  const RowFacts facts = ShareFacts(g, shared.exchange, pass.turn, own, shared.warp_facts);
  if (facts.refused != 0 || facts.argmax < 0) {
    if (g.rank == 0) WriteNoLogprobs(p, r, ask);
  } else {
    AnswerRow(pass, shared.candidates, p, r, ask, facts);
  }
  g.Sync();  // no block leaves while another may read its shared memory
}

}  // namespace fastllm::cuda
