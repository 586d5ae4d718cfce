// The sampling op: bans, greedy rows, threads. What happens to a row that is not greedy is in row_sampler.cc.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "ops/cpu/drive.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/row_sampler.h"

namespace fastllm::ops::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

bool AnyFinite(const float* x, int32_t n) {
  return std::any_of(x, x + n, [](float v) { return std::isfinite(v); });
}

// The row with what its PenaltyRow asks for, in scratch; x itself where that is nothing.
const float* Penalized(const SampleParams& p, int32_t r, const float* x, SampleScratch& scratch) {
  if (p.penalties == nullptr) return x;
  const PenaltyRow& row = p.penalties[r];
  if (row.count_row < 0 && row.bias_begin >= row.bias_end) return x;
  float* const out = scratch.row.data();
  std::copy(x, x + p.vocab, out);
  for (int32_t i = row.bias_begin; i < row.bias_end; ++i) {
    const TokenBias& b = p.biases[i];
    if (b.id >= 0 && b.id < p.vocab) out[b.id] += b.bias;
  }
  if (row.count_row < 0) return out;
  const TokenTally* const counts = p.counts + static_cast<int64_t>(row.count_row) * p.vocab;
  const double repetition = row.repetition_penalty;
  for (int32_t i = 0; i < p.vocab; ++i) {
    if (counts[i] == 0) continue;
    const int outputs = counts[i] & kMostCounted;
    const double v = out[i];
    const double scaled = v * (v > 0.0 ? 1.0 / repetition : repetition);
    out[i] = static_cast<float>(
        scaled - (double{row.frequency_penalty} * outputs + (outputs > 0 ? double{row.presence_penalty} : 0.0)));
  }
  return out;
}

int32_t SampleOne(const Kernels& k, const SampleParams& p, int32_t r, SampleScratch& scratch) {
  const float* x = Penalized(p, r, p.logits + r * p.logits_stride, scratch);
  float* const block_max = scratch.block_max.data();
  MaxResult max = k.max(x, p.vocab, block_max);
  if (max.has_nan || max.index < 0) return -1;
  if (max.value == kInf && !AnyFinite(x, p.vocab)) return -1;

  const SampleRow& row = p.rows[r];
  float* const filtered = row.write_filtered && p.filtered != nullptr ? p.filtered + r * p.logits_stride : nullptr;
  const bool greedy = row.temperature < kGreedyTemperature;
  if (p.ban_start != nullptr && p.ban_start[r] < p.ban_start[r + 1]) {
    const int32_t* begin = p.ban_ids + p.ban_start[r];
    const int32_t* end = p.ban_ids + p.ban_start[r + 1];
    if (greedy && filtered == nullptr && std::find(begin, end, max.index) == end) return max.index;
    if (x != scratch.row.data()) std::copy(x, x + p.vocab, scratch.row.begin());
    for (const int32_t* id = begin; id != end; ++id) {
      if (*id >= 0 && *id < p.vocab) scratch.row[*id] = -kInf;
    }
    x = scratch.row.data();
    max = k.max(x, p.vocab, block_max);
    if (max.index < 0) return -1;
  }
  if (greedy) {
    if (filtered != nullptr && filtered != x) std::copy(x, x + p.vocab, filtered);
    return max.index;
  }
  return RowSampler(k, row, {x, p.vocab, max, block_max}, scratch).Draw(filtered);
}

}  // namespace

void RunSample(const Kernels& k, const SampleParams& p, const OpContext& ctx) {
  // Sized here by the calling thread: memory that runs out inside a parallel region would end the process.
  thread_local std::vector<SampleScratch> scratch;
  const int64_t work = static_cast<int64_t>(p.num_rows) * p.vocab / 4;
  const int32_t team = TeamSize(p.num_rows, work, ctx.num_threads);
  if (scratch.size() < static_cast<size_t>(team)) scratch.resize(team);
  for (int32_t t = 0; t < team; ++t) scratch[t].Reserve(static_cast<size_t>(p.vocab));
  SampleScratch* const of_thread = scratch.data();
  ParallelItems(p.num_rows, work, team, [&](int64_t r, int32_t thread) {
    p.tokens[r] = SampleOne(k, p, static_cast<int32_t>(r), of_thread[thread]);
  });
}

}  // namespace fastllm::ops::cpu
