// Sampling without sorting the vocabulary. One pass finds the maximum (greedy ends there). A row without filters is
// drawn by inverting its distribution block by block. A filtered row gathers the few tokens near the maximum, lowering
// the threshold until they are sure to hold every token that survives, and selects among those in linear time.
// Tokens are ordered by logit, then by lower id, so that top_k and top_p cut ties the same way everywhere; the draw
// walks the survivors in id order. Rules in cpp/docs/ops.md.
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "ops/cpu/drive.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/philox.h"

namespace fastllm::ops::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int64_t kBlock = 1024;  // tokens whose weights are summed in float32 before float64 takes over

struct Candidate {
  float value;
  int32_t id;
  float weight;
};

// Higher logit first, then lower id.
bool Before(const Candidate& a, const Candidate& b) { return a.value > b.value || (a.value == b.value && a.id < b.id); }

struct Scratch {
  std::vector<float> row;       // the logits with bans applied
  std::vector<float> values;    // gathered
  std::vector<int32_t> ids;
  std::vector<float> weights;
  std::vector<Candidate> candidates;
  std::vector<Candidate> order;  // candidates being selected among; vocab elements long, the front in use

  void Reserve(size_t vocab) {
    for (auto* v : {&row, &values, &weights}) v->resize(std::max(v->size(), vocab));
    ids.resize(std::max(ids.size(), vocab));
    candidates.reserve(vocab);
    order.resize(std::max(order.size(), vocab));
  }
};

// One row being sampled. x is the logits with bans applied; max is finite, or +inf with only +inf tokens in play.
class RowSampler {
 public:
  RowSampler(const Kernels& k, const SampleRow& row, const float* x, int32_t vocab, float max, Scratch& scratch)
      : k_(k), row_(row), x_(x), n_(vocab), max_(max), inv_t_(1.0f / row.temperature), s_(scratch) {
    limit_k_ = row.top_k > 0 && row.top_k < vocab;
    limit_p_ = row.top_p < 1.0f;
  }

  int32_t Draw() {
    const double u = UniformDraw(row_.seed, row_.counter);
    const bool limit_min = row_.min_p > 0.0f;
    if (max_ < kInf && !limit_min && !limit_k_ && !limit_p_) return DrawFromAll(u);
    double total = 0.0;  // weight of everything that top_p takes its share of
    if (max_ == kInf) {
      Gather(kInf);
    } else if (limit_min) {
      Gather(MinPThreshold());
    } else {
      if (!limit_k_) total = BlockSums();
      GatherEnough(total);
    }
    if (limit_k_) KeepTopK();
    if (limit_p_) KeepTopP(total > 0.0 ? total : Weight());
    return DrawFromCandidates(u);
  }

 private:
  // Sums of the weights of each block of the row, in s_.weights; returns the sum of all.
  double BlockSums() {
    double total = 0.0;
    for (int64_t b = 0; b * kBlock < n_; ++b) {
      const int64_t n = std::min<int64_t>(kBlock, n_ - b * kBlock);
      s_.weights[b] = k_.exp_sum(x_ + b * kBlock, n, max_, inv_t_);
      total += s_.weights[b];
    }
    return total;
  }

  int32_t DrawFromAll(double u) {
    double left = u * BlockSums();
    const int64_t blocks = (n_ + kBlock - 1) / kBlock;
    int64_t block = -1;  // the last one with weight, should rounding carry `left` past the end
    for (int64_t b = 0; b < blocks; ++b) {
      if (s_.weights[b] <= 0.0f) continue;
      if (block >= 0) left -= s_.weights[block];
      block = b;
      if (left < s_.weights[b]) break;
    }
    const int64_t first = block * kBlock;
    const int64_t n = std::min<int64_t>(kBlock, n_ - first);
    float* w = s_.values.data();
    k_.exp_scaled(x_ + first, n, max_, inv_t_, w);
    int64_t pick = 0;
    for (int64_t i = 0; i < n; ++i) {
      if (w[i] <= 0.0f) continue;
      pick = i;
      left -= w[i];
      if (left < 0.0) break;
    }
    return static_cast<int32_t>(first + pick);
  }

  // The smallest float32 that is at least max + T log(min_p): exp((x - max) / T) >= min_p without an exp.
  float MinPThreshold() const {
    const double min_p = std::min(1.0, static_cast<double>(row_.min_p));
    const double exact = static_cast<double>(max_) + static_cast<double>(row_.temperature) * std::log(min_p);
    if (exact <= -FLT_MAX) return -FLT_MAX;
    const auto rounded = static_cast<float>(exact);
    return static_cast<double>(rounded) < exact ? std::nextafter(rounded, kInf) : rounded;
  }

  // Candidates in id order, with weights.
  void Gather(float threshold) {
    const int64_t count = k_.gather(x_, n_, threshold, s_.values.data(), s_.ids.data());
    if (max_ < kInf) k_.exp_scaled(s_.values.data(), count, max_, inv_t_, s_.weights.data());
    s_.candidates.resize(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      s_.candidates[i] = {s_.values[i], s_.ids[i], max_ < kInf ? s_.weights[i] : 1.0f};
    }
  }

  double Weight() const {
    double sum = 0.0;
    for (const Candidate& c : s_.candidates) sum += c.weight;
    return sum;
  }

  // Gathers down from the maximum until top_k tokens, or top_p of the row's weight `total`, are there.
  void GatherEnough(double total) {
    for (double nats = 6.0; nats <= 64.0; nats *= 1.5) {
      const double threshold = static_cast<double>(max_) - nats * static_cast<double>(row_.temperature);
      if (threshold <= -FLT_MAX) break;
      Gather(static_cast<float>(threshold));
      const bool enough = limit_k_ ? static_cast<int64_t>(s_.candidates.size()) >= row_.top_k
                                   : Weight() >= static_cast<double>(row_.top_p) * total;
      if (enough) return;
    }
    Gather(-FLT_MAX);
  }

  // Drops every candidate after `last` in the order. Without branches: which ones stay cannot be predicted.
  void CutAfter(const Candidate& last) {
    size_t kept = 0;
    for (const Candidate& c : s_.candidates) {
      s_.candidates[kept] = c;
      kept += static_cast<size_t>((c.value > last.value) | ((c.value == last.value) & (c.id <= last.id)));
    }
    s_.candidates.resize(kept);
  }

  void KeepTopK() {
    if (s_.candidates.size() <= static_cast<size_t>(row_.top_k)) return;
    CutAfter(FindLast(row_.top_k, [](const Candidate&) { return 1.0; }));
  }

  void KeepTopP(double total) {
    CutAfter(FindLast(static_cast<double>(row_.top_p) * total, [](const Candidate& c) { return double{c.weight}; }));
  }

  // The last candidate of the shortest run of the order, at least one long, whose measure reaches target (the last of
  // all where none does). A histogram over equal steps of the logit finds the step that holds it; within the step, the
  // range is halved by partitioning. Linear in the candidates.
  template <typename Measure>
  Candidate FindLast(double target, Measure measure) {
    double before = 0.0;
    Candidate* lo = s_.order.data();
    Candidate* hi = lo + SelectStep(target, measure, before);
    while (hi - lo > 1) {
      Candidate* const mid = lo + (hi - lo) / 2;
      std::nth_element(lo, mid, hi, Before);
      double part = 0.0;
      for (const Candidate* it = lo; it != mid; ++it) part += measure(*it);
      if (before + part >= target) {
        hi = mid;
      } else {
        before += part;
        lo = mid;
      }
    }
    return *lo;
  }

  // Puts the candidates of the step where the measure passes target into s_.order, and what comes earlier into before.
  // Returns how many they are.
  template <typename Measure>
  size_t SelectStep(double target, Measure measure, double& before) {
    constexpr int kSteps = 256;
    float min = max_;
    for (const Candidate& c : s_.candidates) min = std::min(min, c.value);
    const float scale = static_cast<float>(kSteps) / (max_ - min);
    if (s_.candidates.size() < 2 * kSteps || !(scale < kInf)) {  // too few to pay, all equal, or +inf among them
      std::copy(s_.candidates.begin(), s_.candidates.end(), s_.order.begin());
      return s_.candidates.size();
    }
    // Rounding keeps the order: a lower logit is never in an earlier step.
    const auto step = [this, scale](const Candidate& c) {
      return std::min(kSteps - 1, static_cast<int>((max_ - c.value) * scale));
    };
    double mass[kSteps] = {};
    int32_t count[kSteps] = {};
    for (const Candidate& c : s_.candidates) {
      const int i = step(c);
      mass[i] += measure(c);
      ++count[i];
    }
    int chosen = 0;
    double passed = 0.0;
    for (int i = 0; i < kSteps; ++i) {
      if (count[i] == 0) continue;
      before = passed;
      chosen = i;
      passed += mass[i];
      if (passed >= target) break;
    }
    size_t n = 0;
    for (const Candidate& c : s_.candidates) {
      s_.order[n] = c;
      n += static_cast<size_t>(step(c) == chosen);
    }
    return n;
  }

  int32_t DrawFromCandidates(double u) const {
    double left = u * Weight();
    int32_t pick = -1;
    for (const Candidate& c : s_.candidates) {
      if (c.weight <= 0.0f) continue;
      pick = c.id;
      left -= c.weight;
      if (left < 0.0) break;
    }
    return pick;
  }

  const Kernels& k_;
  const SampleRow& row_;
  const float* x_;
  int32_t n_;
  float max_;
  float inv_t_;
  bool limit_k_ = false;
  bool limit_p_ = false;
  Scratch& s_;
};

bool AnyFinite(const float* x, int32_t n) {
  return std::any_of(x, x + n, [](float v) { return std::isfinite(v); });
}

int32_t SampleOne(const Kernels& k, const SampleParams& p, int32_t r, Scratch& scratch) {
  const float* x = p.logits + r * p.logits_stride;
  MaxResult max = k.max(x, p.vocab);
  if (max.has_nan || max.index < 0) return -1;
  if (max.value == kInf && !AnyFinite(x, p.vocab)) return -1;

  const SampleRow& row = p.rows[r];
  const bool greedy = row.temperature < kGreedyTemperature;
  if (p.ban_start != nullptr && p.ban_start[r] < p.ban_start[r + 1]) {
    const int32_t* begin = p.ban_ids + p.ban_start[r];
    const int32_t* end = p.ban_ids + p.ban_start[r + 1];
    if (greedy && std::find(begin, end, max.index) == end) return max.index;
    std::copy(x, x + p.vocab, scratch.row.begin());
    for (const int32_t* id = begin; id != end; ++id) {
      if (*id >= 0 && *id < p.vocab) scratch.row[*id] = -kInf;
    }
    x = scratch.row.data();
    max = k.max(x, p.vocab);
    if (max.index < 0) return -1;
  }
  if (greedy) return max.index;
  return RowSampler(k, row, x, p.vocab, max.value, scratch).Draw();
}

}  // namespace

void RunSample(const Kernels& k, const SampleParams& p, const OpContext& ctx) {
  // Sized here by the calling thread: memory that runs out inside a parallel region would end the process.
  thread_local std::vector<Scratch> scratch;
  const int64_t work = static_cast<int64_t>(p.num_rows) * p.vocab / 4;
  const int32_t team = TeamSize(p.num_rows, work, ctx.num_threads);
  if (scratch.size() < static_cast<size_t>(team)) scratch.resize(team);
  for (int32_t t = 0; t < team; ++t) scratch[t].Reserve(static_cast<size_t>(p.vocab));
  Scratch* const of_thread = scratch.data();
  ParallelItems(p.num_rows, team, [&](int64_t r, int32_t thread) {
    p.tokens[r] = SampleOne(k, p, static_cast<int32_t>(r), of_thread[thread]);
  });
}

}  // namespace fastllm::ops::cpu
