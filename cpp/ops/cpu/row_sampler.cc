// Sampling without sorting the vocabulary. A row without filters is drawn by inverting its distribution block by block.
// A filtered row gathers the few tokens near the maximum, lowering the threshold until they are sure to hold every
// token that survives, and selects among those in linear time. Tokens are ordered by logit, then by lower id, so that
// every filter cuts ties the same way everywhere; the draw walks the survivors in id order.
#include "ops/cpu/row_sampler.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>

#include "ops/cpu/philox.h"

namespace fastllm::ops::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int64_t kSumBlock = 1024;  // tokens that share one sum of weights
constexpr uint32_t kTokenStream = 0;
constexpr uint32_t kXtcStream = 1;

// The smallest float32 that is at least `exact`, and finite.
float RoundUp(double exact) {
  if (!(exact > -static_cast<double>(FLT_MAX))) return -FLT_MAX;
  const auto rounded = static_cast<float>(exact);
  return static_cast<double>(rounded) < exact ? std::nextafter(rounded, kInf) : rounded;
}

}  // namespace

void SampleScratch::Reserve(size_t vocab) {
  for (auto* v : {&row, &values, &weights}) v->resize(std::max(v->size(), vocab));
  block_max.resize(std::max(block_max.size(), vocab / kMaxBlock + 1));
  ids.resize(std::max(ids.size(), vocab));
  candidates.reserve(vocab);
  order.resize(std::max(order.size(), vocab));
}

RowSampler::RowSampler(const Kernels& k, const SampleRow& row, const RowView& view, SampleScratch& scratch)
    : k_(k), row_(row), view_(view), inv_t_(1.0f / row.temperature), s_(scratch) {
  limit_k_ = row.top_k > 0 && row.top_k < view.n;
  drop_top_ = row.xtc_probability > 0.0f && UniformDraw(row.seed, row.counter, kXtcStream) < row.xtc_probability;
}

int32_t RowSampler::Draw(float* filtered) {
  const double u = UniformDraw(row_.seed, row_.counter, kTokenStream);
  if (!HasFilter() && view_.max.value < kInf) {
    if (filtered != nullptr && filtered != view_.x) std::copy(view_.x, view_.x + view_.n, filtered);
    return DrawFromAll(u);
  }
  const double total = GatherFirst();
  if (limit_k_ && s_.candidates.size() > static_cast<size_t>(row_.top_k)) {
    CutAfter(NthInOrder(s_.candidates, row_.top_k, s_.order));
  }
  if (row_.typical_p < 1.0f) KeepTypical();
  if (row_.top_p < 1.0f) {
    const double mass = total > 0.0 ? total : Weight();
    CutAfter(LastWithin(s_.candidates, static_cast<double>(row_.top_p) * mass, s_.order));
  }
  if (drop_top_) DropTopChoices();
  const int32_t token = DrawFromCandidates(u);
  if (filtered != nullptr) WriteFiltered(filtered);
  return token;
}

bool RowSampler::HasFilter() const {
  return limit_k_ || drop_top_ || row_.top_n_sigma > 0.0f || row_.min_p > 0.0f || row_.typical_p < 1.0f ||
         row_.top_p < 1.0f;
}

double RowSampler::GatherFirst() {
  if (view_.max.value == kInf) {
    Gather(kInf);
    return 0.0;
  }
  if (row_.top_n_sigma > 0.0f || row_.min_p > 0.0f) {
    Gather(std::max(SigmaThreshold(), MinPThreshold()));
    return 0.0;
  }
  if (limit_k_) {
    GatherTopK();
    return 0.0;
  }
  if (row_.typical_p < 1.0f || !(row_.top_p < 1.0f)) {
    Gather(-FLT_MAX);
    return 0.0;
  }
  const double total = BlockSums();
  GatherTopP(total);
  return total;
}

// Candidates in id order, with weights.
void RowSampler::Gather(float threshold) {
  const int64_t count = GatherAbove(k_, view_, threshold, s_.values.data(), s_.ids.data());
  const bool finite = view_.max.value < kInf;
  if (finite) k_.exp_scaled(s_.values.data(), count, view_.max.value, inv_t_, s_.weights.data());
  s_.candidates.resize(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    s_.candidates[i] = {s_.values[i], s_.ids[i], finite ? s_.weights[i] : 1.0f};
  }
}

void RowSampler::GatherTopK() {
  const float bound = TopBound(view_, row_.top_k, s_.weights.data());
  if (bound > -kInf) {
    Gather(bound);
    return;
  }
  for (double nats = 6.0; nats <= 64.0; nats *= 1.5) {
    const double threshold = static_cast<double>(view_.max.value) - nats * static_cast<double>(row_.temperature);
    if (threshold <= -static_cast<double>(FLT_MAX)) break;
    Gather(static_cast<float>(threshold));
    if (static_cast<int64_t>(s_.candidates.size()) >= row_.top_k) return;
  }
  Gather(-FLT_MAX);
}

// Gathers down from the maximum until top_p of the row's weight `total` is there.
void RowSampler::GatherTopP(double total) {
  for (double nats = 6.0; nats <= 64.0; nats *= 1.5) {
    const double threshold = static_cast<double>(view_.max.value) - nats * static_cast<double>(row_.temperature);
    if (threshold <= -static_cast<double>(FLT_MAX)) break;
    Gather(static_cast<float>(threshold));
    if (Weight() >= static_cast<double>(row_.top_p) * total) return;
  }
  Gather(-FLT_MAX);
}

// exp((x - max) / T) >= min_p, without an exp: x >= max + T log(min_p).
float RowSampler::MinPThreshold() const {
  if (!(row_.min_p > 0.0f)) return -FLT_MAX;
  const double min_p = std::min(1.0, static_cast<double>(row_.min_p));
  return RoundUp(static_cast<double>(view_.max.value) + static_cast<double>(row_.temperature) * std::log(min_p));
}

// max - n sigma. The temperature would scale both sides alike, so it is left out. The first pass finds the mean, the
// second the squares about it.
float RowSampler::SigmaThreshold() const {
  if (!(row_.top_n_sigma > 0.0f)) return -FLT_MAX;
  const double max = view_.max.value;
  const Moments rough = k_.moments(view_.x, view_.n, view_.max.value);
  const double mean = max + rough.sum / static_cast<double>(rough.count);
  const Moments m = k_.moments(view_.x, view_.n, static_cast<float>(mean));
  const double n = static_cast<double>(m.count);
  const double variance = m.sum_square / n - (m.sum / n) * (m.sum / n);
  if (!(variance < std::numeric_limits<double>::infinity())) return -FLT_MAX;
  return RoundUp(max - static_cast<double>(row_.top_n_sigma) * std::sqrt(std::max(0.0, variance)));
}

// Drops every candidate after `last` in the order. Without branches: which ones stay cannot be predicted.
void RowSampler::CutAfter(const Candidate& last) {
  size_t kept = 0;
  for (const Candidate& c : s_.candidates) {
    s_.candidates[kept] = c;
    kept += static_cast<size_t>((c.value > last.value) | ((c.value == last.value) & (c.id <= last.id)));
  }
  s_.candidates.resize(kept);
}

// The order is by |surprise - entropy|, then by id: the candidates take minus that distance as their value for a while.
void RowSampler::KeepTypical() {
  const bool finite = view_.max.value < kInf;
  const double total = Weight();
  const auto z = [this](const Candidate& c) {
    return (static_cast<double>(c.value) - static_cast<double>(view_.max.value)) /
           static_cast<double>(row_.temperature);
  };
  double mean = 0.0;  // of z; the entropy is log(total) - mean, a token's surprise log(total) - z
  if (finite) {
    for (const Candidate& c : s_.candidates) mean += static_cast<double>(c.weight) * z(c);
    mean /= total;
  }
  for (Candidate& c : s_.candidates) c.value = finite ? -static_cast<float>(std::abs(z(c) - mean)) : 0.0f;
  CutAfter(LastWithin(s_.candidates, static_cast<double>(row_.typical_p) * total, s_.order));
  for (Candidate& c : s_.candidates) c.value = view_.x[c.id];
}

// XTC: of the candidates with at least the threshold's share, only the last in the order stays.
void RowSampler::DropTopChoices() {
  const double limit = static_cast<double>(row_.xtc_threshold) * Weight();
  const auto is_top = [limit](const Candidate& c) { return static_cast<double>(c.weight) >= limit; };
  Candidate last{};
  bool any = false;
  for (const Candidate& c : s_.candidates) {
    if (!is_top(c) || (any && Before(c, last))) continue;
    last = c;
    any = true;
  }
  if (any) std::erase_if(s_.candidates, [&](const Candidate& c) { return is_top(c) && c.id != last.id; });
}

double RowSampler::Weight() const {
  double sum = 0.0;
  for (const Candidate& c : s_.candidates) sum += static_cast<double>(c.weight);
  return sum;
}

// Sums of the weights of each kSumBlock tokens, in s_.weights; returns the sum of all.
double RowSampler::BlockSums() {
  double total = 0.0;
  const double inv_t = inv_t_;
  for (int64_t b = 0; b * kSumBlock < view_.n; ++b) {
    const int64_t n = std::min<int64_t>(kSumBlock, view_.n - b * kSumBlock);
    const double sum = k_.exp_sum(view_.x + b * kSumBlock, n, view_.max.value, inv_t);
    s_.weights[b] = static_cast<float>(sum);
    total += static_cast<double>(s_.weights[b]);
  }
  return total;
}

int32_t RowSampler::DrawFromAll(double u) {
  double left = u * BlockSums();
  const int64_t blocks = (view_.n + kSumBlock - 1) / kSumBlock;
  int64_t block = -1;  // the last one with weight, should rounding carry `left` past the end
  for (int64_t b = 0; b < blocks; ++b) {
    if (s_.weights[b] <= 0.0f) continue;
    if (block >= 0) left -= static_cast<double>(s_.weights[block]);
    block = b;
    if (left < static_cast<double>(s_.weights[b])) break;
  }
  const int64_t first = block * kSumBlock;
  const int64_t n = std::min<int64_t>(kSumBlock, view_.n - first);
  float* w = s_.values.data();
  k_.exp_scaled(view_.x + first, n, view_.max.value, inv_t_, w);
  int64_t pick = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (w[i] <= 0.0f) continue;
    pick = i;
    left -= static_cast<double>(w[i]);
    if (left < 0.0) break;
  }
  return static_cast<int32_t>(first + pick);
}

int32_t RowSampler::DrawFromCandidates(double u) const {
  double left = u * Weight();
  int32_t pick = -1;
  for (const Candidate& c : s_.candidates) {
    if (c.weight <= 0.0f) continue;
    pick = c.id;
    left -= static_cast<double>(c.weight);
    if (left < 0.0) break;
  }
  return pick;
}

void RowSampler::WriteFiltered(float* filtered) const {
  std::fill(filtered, filtered + view_.n, -kInf);
  for (const Candidate& c : s_.candidates) filtered[c.id] = c.value;
}

}  // namespace fastllm::ops::cpu
