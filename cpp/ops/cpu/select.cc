#include "ops/cpu/select.h"

#include <algorithm>
#include <functional>
#include <limits>

namespace fastllm::ops::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int kSteps = 256;

// Calls body(first, last) for each run of neighbouring blocks whose maxima satisfy keep.
template <typename Keep, typename Body>
void ForBlocks(const RowView& row, Keep keep, Body body) {
  const int64_t blocks = NumBlocks(row.n);
  for (int64_t b = 0; b < blocks; ++b) {
    if (!keep(row.block_max[b])) continue;
    const int64_t first = b;
    while (b + 1 < blocks && keep(row.block_max[b + 1])) ++b;
    body(first * kMaxBlock, std::min<int64_t>((b + 1) * kMaxBlock, row.n));
  }
}

// Of a histogram of the candidates over equal steps of their values, the step where the measure passes target: its
// candidates go to the front of order, what comes earlier is added to before. Returns how many they are.
template <typename Measure>
size_t SelectStep(const std::vector<Candidate>& candidates, double target, Measure measure, double& before,
                  std::vector<Candidate>& order) {
  float max = -kInf;
  float min = kInf;
  for (const Candidate& c : candidates) {
    max = std::max(max, c.value);
    min = std::min(min, c.value);
  }
  const float scale = static_cast<float>(kSteps) / (max - min);
  if (candidates.size() < 2 * kSteps || !(scale < kInf)) {  // too few to pay, all equal, or +inf among them
    std::copy(candidates.begin(), candidates.end(), order.begin());
    return candidates.size();
  }
  // Rounding keeps the order: a lower value is never in an earlier step.
  const auto step = [max, scale](const Candidate& c) {
    return std::min(kSteps - 1, static_cast<int>((max - c.value) * scale));
  };
  double mass[kSteps] = {};
  int32_t count[kSteps] = {};
  for (const Candidate& c : candidates) {
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
  for (const Candidate& c : candidates) {
    order[n] = c;
    n += static_cast<size_t>(step(c) == chosen);
  }
  return n;
}

// A histogram finds the step that holds the answer; within the step, the range is halved by partitioning.
template <typename Measure>
Candidate FindLast(const std::vector<Candidate>& candidates, double target, Measure measure,
                   std::vector<Candidate>& order) {
  double before = 0.0;
  Candidate* lo = order.data();
  Candidate* hi = lo + SelectStep(candidates, target, measure, before, order);
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

}  // namespace

int64_t GatherAbove(const Kernels& k, const RowView& row, float threshold, float* values, int32_t* ids) {
  int64_t count = 0;
  ForBlocks(
      row, [threshold](float max) { return max >= threshold; },
      [&](int64_t first, int64_t last) {
        count +=
            k.gather(row.x + first, last - first, threshold, static_cast<int32_t>(first), values + count, ids + count);
      });
  return count;
}

int64_t CountAbove(const Kernels& k, const RowView& row, float threshold) {
  int64_t count = 0;
  ForBlocks(
      row, [threshold](float max) { return max > threshold; },
      [&](int64_t first, int64_t last) { count += k.count_above(row.x + first, last - first, threshold); });
  return count;
}

float TopBound(const RowView& row, int64_t count, float* scratch) {
  const int64_t blocks = NumBlocks(row.n);
  if (count > blocks) return -kInf;
  std::copy(row.block_max, row.block_max + blocks, scratch);
  std::nth_element(scratch, scratch + count - 1, scratch + blocks, std::greater<>());
  return scratch[count - 1];
}

Candidate LastWithin(const std::vector<Candidate>& candidates, double target, std::vector<Candidate>& order) {
  return FindLast(candidates, target, [](const Candidate& c) { return static_cast<double>(c.weight); }, order);
}

Candidate NthInOrder(const std::vector<Candidate>& candidates, int64_t count, std::vector<Candidate>& order) {
  return FindLast(candidates, static_cast<double>(count), [](const Candidate&) { return 1.0; }, order);
}

}  // namespace fastllm::ops::cpu
