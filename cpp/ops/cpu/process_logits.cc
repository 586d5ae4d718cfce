// What requests ask to be done to their logits before sampling. Lists are walked by element; only a bitmask or a list
// of allowed ids passes over the row.
#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include "ops/cpu/drive.h"
#include "ops/cpu/dry.h"
#include "ops/cpu/parallel.h"

namespace fastllm::ops::cpu {
namespace {

constexpr float kNegInf = -std::numeric_limits<float>::infinity();

struct Scratch {
  std::vector<float> kept;  // logits of the allowed ids
  DryScratch dry;
};

bool InRow(int32_t id, int32_t vocab) { return id >= 0 && id < vocab; }

bool HasPenalties(const LogitsRow& row) {
  return row.counts.size > 0 &&
         (row.repetition_penalty != 1.0f || row.frequency_penalty != 0.0f || row.presence_penalty != 0.0f);
}

bool HasDry(const LogitsRow& row) { return row.dry.multiplier != 0.0f && row.dry.history.size > 1; }

bool Possible(const int32_t* bitmask, int32_t id) {
  return bitmask == nullptr || (static_cast<uint32_t>(bitmask[id / 32]) >> (id % 32) & 1) != 0;
}

// One pass that writes and never reads the row: the allowed logits are put aside first.
void KeepAllowed(const LogitsRow& row, float* x, int32_t vocab, float* kept) {
  const int32_t* ids = row.allowed.data;
  for (int32_t i = 0; i < row.allowed.size; ++i) {
    if (InRow(ids[i], vocab)) kept[i] = Possible(row.bitmask, ids[i]) ? x[ids[i]] : kNegInf;
  }
  std::fill(x, x + vocab, kNegInf);
  for (int32_t i = 0; i < row.allowed.size; ++i) {
    if (InRow(ids[i], vocab)) x[ids[i]] = kept[i];
  }
}

void Ban(const List<int32_t>& ids, float* x, int32_t vocab) {
  for (int32_t i = 0; i < ids.size; ++i) {
    if (InRow(ids.data[i], vocab)) x[ids.data[i]] = kNegInf;
  }
}

// Without branches on the data, as neither signs nor counts can be predicted; in float64, rounded once. The logits of a
// row are seldom in a near cache here, so they are asked for ahead.
void Penalize(const LogitsRow& row, float* x, int32_t vocab) {
  constexpr int32_t kAhead = 16;
  const double repetition = row.repetition_penalty;
  const double scales[3] = {1.0, repetition, 1.0 / repetition};  // not seen; seen and not positive; seen and positive
  const double frequency = row.frequency_penalty;
  const double presence = row.presence_penalty;
  const TokenCount* counts = row.counts.data;
  const int32_t n = row.counts.size;
  for (int32_t i = 0; i < n; ++i) {
    if (i + kAhead < n && InRow(counts[i + kAhead].id, vocab)) __builtin_prefetch(x + counts[i + kAhead].id, 1);
    if (!InRow(counts[i].id, vocab)) continue;
    const int32_t outputs = std::max(0, counts[i].output_count);
    const int written = outputs > 0 ? 1 : 0;
    const int seen = written | static_cast<int>(counts[i].in_prompt);
    const double v = x[counts[i].id];
    const double scaled = v * scales[seen * (1 + static_cast<int>(v > 0.0))];
    x[counts[i].id] = static_cast<float>(scaled - (frequency * outputs + presence * written));
  }
}

void ProcessRow(const Kernels& k, const LogitsRow& row, float* x, int32_t vocab, Scratch& scratch) {
  if (row.allowed.data != nullptr) {
    KeepAllowed(row, x, vocab, scratch.kept.data());
  } else if (row.bitmask != nullptr) {
    k.mask_bits(x, vocab, row.bitmask);
  }
  Ban(row.bad_words, x, vocab);
  Ban(row.min_tokens, x, vocab);
  for (int32_t i = 0; i < row.logit_bias.size; ++i) {
    const TokenBias& b = row.logit_bias.data[i];
    if (InRow(b.id, vocab)) x[b.id] += b.bias;
  }
  if (HasPenalties(row)) Penalize(row, x, vocab);
  if (HasDry(row)) ApplyDry(row.dry, x, vocab, scratch.dry);
}

// About what a row costs, in nanoseconds; 0 when it asks for nothing.
int64_t Work(const LogitsRow& row, int32_t vocab) {
  int64_t work = 2 * (int64_t{row.bad_words.size} + row.min_tokens.size + row.logit_bias.size + row.allowed.size);
  if (row.bitmask != nullptr || row.allowed.data != nullptr) work += 1 + vocab / 8;
  if (HasPenalties(row)) work += 4 * int64_t{row.counts.size};
  if (HasDry(row)) work += 4 * int64_t{row.dry.history.size};
  return work;
}

}  // namespace

void RunProcessLogits(const Kernels& k, const ProcessLogitsParams& p, const OpContext& ctx) {
  // Sized here by the calling thread: memory that runs out inside a parallel region would end the process.
  thread_local std::vector<Scratch> scratch;
  int64_t work = 0;
  for (int32_t r = 0; r < p.num_rows; ++r) work += Work(p.rows[r], p.vocab);
  if (p.from != nullptr) work += int64_t{p.num_rows} * p.vocab / 8;
  if (work == 0) return;
  const int32_t team = TeamSize(p.num_rows, work, ctx.num_threads);
  if (scratch.size() < static_cast<size_t>(team)) scratch.resize(team);
  for (int32_t t = 0; t < team; ++t) {
    for (int32_t r = 0; r < p.num_rows; ++r) {
      const LogitsRow& row = p.rows[r];
      scratch[t].kept.resize(std::max(scratch[t].kept.size(), static_cast<size_t>(row.allowed.size)));
      if (HasDry(row)) scratch[t].dry.Reserve(row.dry, p.vocab);
    }
  }
  Scratch* const of_thread = scratch.data();
  ParallelItems(p.num_rows, work, team, [&](int64_t r, int32_t thread) {
    float* x = p.logits + r * p.logits_stride;
    if (p.from != nullptr) std::copy_n(p.from + r * p.from_stride, p.vocab, x);
    ProcessRow(k, p.rows[r], x, p.vocab, of_thread[thread]);
  });
}

}  // namespace fastllm::ops::cpu
