// Log-softmax at a few places of each row: one pass for the maxima of blocks, one for the sum of exponentials. The
// maxima then point to the few blocks that hold the top tokens, or logits above the chosen one.
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "ops/cpu/drive.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/select.h"

namespace fastllm::ops::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Scratch {
  std::vector<float> block_max;
  std::vector<float> values;  // gathered
  std::vector<int32_t> ids;
  std::vector<Candidate> order;
};

// Turns a logit into its logprob.
struct LogSoftmax {
  double max;
  double inv_t;
  double log_sum;  // of exp((x - max) / T); of how many are +inf where max is

  float operator()(float x) const {
    if (max == static_cast<double>(kInf)) return x == kInf ? static_cast<float>(-log_sum) : -kInf;
    return static_cast<float>((static_cast<double>(x) - max) * inv_t - log_sum);
  }
};

LogSoftmax Normalize(const Kernels& k, const RowView& row, float temperature) {
  LogSoftmax f;
  f.max = row.max.value;
  f.inv_t = 1.0 / static_cast<double>(temperature);
  f.log_sum = row.max.value == kInf ? std::log(static_cast<double>(CountAbove(k, row, FLT_MAX)))
                                    : std::log(k.exp_sum(row.x, row.n, row.max.value, f.inv_t));
  return f;
}

// The first `count` of the order, in order, at the front of s.order; returns how many there are.
int64_t TopTokens(const Kernels& k, const RowView& row, int32_t count, Scratch& s) {
  const int64_t want = std::min(count, row.n);
  const float bound = std::max(-FLT_MAX, TopBound(row, want, s.values.data()));
  const int64_t found = GatherAbove(k, row, bound, s.values.data(), s.ids.data());
  for (int64_t i = 0; i < found; ++i) s.order[i] = {s.values[i], s.ids[i], 0.0f};
  if (found > want) std::nth_element(s.order.begin(), s.order.begin() + want, s.order.begin() + found, Before);
  int64_t n = std::min(found, want);
  std::sort(s.order.begin(), s.order.begin() + n, Before);
  for (int32_t id = 0; n < want && id < row.n; ++id) {
    if (row.x[id] == -kInf) s.order[n++] = {-kInf, id, 0.0f};
  }
  return n;
}

// The outputs of one row.
struct RowOutput {
  float* token_logprob;
  int32_t* token_rank;
  int32_t* top_ids;
  float* top_logprobs;
};

void WriteNothing(const LogprobsRow& ask, const RowOutput& out) {
  if (ask.token >= 0) {
    *out.token_logprob = kNan;
    *out.token_rank = 0;
  }
  for (int32_t i = 0; i < ask.top_k; ++i) {
    out.top_ids[i] = -1;
    out.top_logprobs[i] = kNan;
  }
  for (int32_t i = 0; i < ask.ids.size; ++i) ask.id_logprobs[i] = kNan;
}

void LogprobsOfRow(const Kernels& k, const LogprobsRow& ask, const float* x, int32_t n, const RowOutput& out,
                   Scratch& s) {
  WriteNothing(ask, out);
  const RowView row = {x, n, k.max(x, n, s.block_max.data()), s.block_max.data()};
  if (row.max.has_nan || row.max.index < 0) return;
  const LogSoftmax logprob = Normalize(k, row, ask.temperature);
  if (ask.token >= 0 && ask.token < n) {
    *out.token_logprob = logprob(x[ask.token]);
    *out.token_rank = static_cast<int32_t>(1 + CountAbove(k, row, x[ask.token]));
  }
  if (ask.top_k > 0) {
    const int64_t count = TopTokens(k, row, ask.top_k, s);
    for (int64_t i = 0; i < count; ++i) {
      out.top_ids[i] = s.order[i].id;
      out.top_logprobs[i] = logprob(s.order[i].value);
    }
  }
  for (int32_t i = 0; i < ask.ids.size; ++i) {
    const int32_t id = ask.ids.data[i];
    if (id >= 0 && id < n) ask.id_logprobs[i] = logprob(x[id]);
  }
}

bool AsksNothing(const LogprobsRow& ask) { return ask.token < 0 && ask.top_k <= 0 && ask.ids.size <= 0; }

// With the token that is meant. A row of which nothing was drawn has no logprobs.
LogprobsRow Resolve(const LogprobsParams& p, int64_t r) {
  LogprobsRow ask = p.rows[r];
  if (ask.token != kDrawnToken) return ask;
  if (p.tokens[r] < 0) return {};
  ask.token = p.tokens[r];
  return ask;
}

}  // namespace

void RunLogprobs(const Kernels& k, const LogprobsParams& p, const OpContext& ctx) {
  // Sized here by the calling thread: memory that runs out inside a parallel region would end the process.
  thread_local std::vector<Scratch> scratch;
  const int64_t work = int64_t{p.num_rows} * p.vocab / 4;
  const int32_t team = TeamSize(p.num_rows, work, ctx.num_threads);
  if (scratch.size() < static_cast<size_t>(team)) scratch.resize(team);
  const auto vocab = static_cast<size_t>(p.vocab);
  for (int32_t t = 0; t < team; ++t) {
    Scratch& s = scratch[t];
    s.block_max.resize(std::max(s.block_max.size(), vocab / kMaxBlock + 1));
    s.values.resize(std::max(s.values.size(), vocab));
    s.ids.resize(std::max(s.ids.size(), vocab));
    s.order.resize(std::max(s.order.size(), vocab));
  }
  Scratch* const of_thread = scratch.data();
  ParallelItems(p.num_rows, work, team, [&](int64_t r, int32_t thread) {
    const LogprobsRow ask = Resolve(p, r);
    if (AsksNothing(ask)) return;
    const int64_t top = r * p.top_stride;
    const bool tops = ask.top_k > 0;
    const RowOutput out = {ask.token >= 0 ? p.token_logprobs + r : nullptr,
                           ask.token >= 0 ? p.token_ranks + r : nullptr, tops ? p.top_ids + top : nullptr,
                           tops ? p.top_logprobs + top : nullptr};
    LogprobsOfRow(k, ask, p.logits + r * p.logits_stride, p.vocab, out, of_thread[thread]);
  });
}

}  // namespace fastllm::ops::cpu
