// The passes over a row of logits that sampling is made of.
#pragma once

#include "ops/cpu/isa/vector_kernels.h"

namespace fastllm::ops::cpu {
namespace {

constexpr float kNegInf = -__builtin_inff();

// One pass, block by block; only the first block that holds the maximum is looked through for its index.
MaxResult MaxOf(const float* x, int64_t n, float* block_max) {
  float best = kNegInf;
  int64_t best_block = 0;
  uint32_t nan = 0;
  for (int64_t b = 0; b < n; b += kMaxBlock) {
    const int64_t end = b + kMaxBlock < n ? b + kMaxBlock : n;
    Vec m[4] = {Set(kNegInf), Set(kNegInf), Set(kNegInf), Set(kNegInf)};
    int64_t i = b;
    for (; i + 4 * kLanes <= end; i += 4 * kLanes) {
#pragma GCC unroll 4
      for (int u = 0; u < 4; ++u) {
        const Vec v = Load(x + i + u * kLanes);
        nan |= MaskNan(v);
        m[u] = Max(v, m[u]);
      }
    }
    for (; i + kLanes <= end; i += kLanes) {
      const Vec v = Load(x + i);
      nan |= MaskNan(v);
      m[0] = Max(v, m[0]);
    }
    float top = ReduceMax(Max(Max(m[0], m[1]), Max(m[2], m[3])));
    for (; i < end; ++i) {
      if (x[i] != x[i]) nan = 1;
      if (x[i] > top) top = x[i];
    }
    block_max[b / kMaxBlock] = top;
    if (top > best) {
      best = top;
      best_block = b;
    }
  }
  MaxResult r;
  r.value = best;
  r.has_nan = nan != 0;
  r.index = -1;
  if (!r.has_nan && best > kNegInf) {
    int64_t i = best_block;
    while (x[i] != best) ++i;
    r.index = static_cast<int32_t>(i);
  }
  return r;
}

void ExpScaled(const float* x, int64_t n, float max, float inv_t, float* w) {
  const Vec m = Set(max);
  const Vec s = Set(inv_t);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Store(w + i, Exp(Mul(Sub(Load(x + i), m), s)));
  if (i < n) {
    const int rest = static_cast<int>(n - i);
    StoreFirst(w + i, Exp(Mul(Sub(LoadFirst(x + i, rest), m), s)), rest);
  }
}

// The last n < kLanes elements, the other lanes `fill`.
inline Vec LoadLast(const float* x, int64_t n, float fill) {
  alignas(64) float lanes[kLanes];
  Store(lanes, Set(fill));
  __builtin_memcpy(lanes, x, static_cast<size_t>(n) * sizeof(float));
  return Load(lanes);
}

// exp((x - max) * (hi + lo)). The product of -inf with hi + lo can be NaN; Max turns that into a weight of 0.
inline Vec ExpFine(Vec x, Vec max, Vec hi, Vec lo) {
  const Vec d = Sub(x, max);
  return Exp(Max(Fma(d, hi, Mul(d, lo)), Set(-110.0f)));
}

double ExpSum(const float* x, int64_t n, float max, double inv_t) {
  const Vec m = Set(max);
  const auto high = static_cast<float>(inv_t);
  const Vec hi = Set(high);
  const Vec lo = Set(static_cast<float>(inv_t - static_cast<double>(high)));
  double total = 0.0;
  for (int64_t b = 0; b < n; b += kMaxBlock) {
    const int64_t end = b + kMaxBlock < n ? b + kMaxBlock : n;
    Vec sum[2] = {Set(0.0f), Set(0.0f)};
    int64_t i = b;
    for (; i + 2 * kLanes <= end; i += 2 * kLanes) {
      sum[0] = Add(sum[0], ExpFine(Load(x + i), m, hi, lo));
      sum[1] = Add(sum[1], ExpFine(Load(x + i + kLanes), m, hi, lo));
    }
    if (i + kLanes <= end) {
      sum[0] = Add(sum[0], ExpFine(Load(x + i), m, hi, lo));
      i += kLanes;
    }
    if (i < end) sum[1] = Add(sum[1], ExpFine(LoadLast(x + i, end - i, kNegInf), m, hi, lo));
    total += static_cast<double>(ReduceAdd(Add(sum[0], sum[1])));
  }
  return total;
}

int64_t GatherGe(const float* x, int64_t n, float threshold, int32_t base, float* values, int32_t* ids) {
  const Vec limit = Set(threshold);
  int64_t count = 0;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Vec v = Load(x + i);
    const uint32_t mask = MaskGe(v, limit);
    if (mask != 0) count += StorePacked(values + count, ids + count, v, base + static_cast<int32_t>(i), mask);
  }
  for (; i < n; ++i) {
    if (x[i] >= threshold) {
      values[count] = x[i];
      ids[count++] = base + static_cast<int32_t>(i);
    }
  }
  return count;
}

int64_t CountAbove(const float* x, int64_t n, float threshold) {
  const Vec limit = Set(threshold);
  int64_t count = 0;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) count += __builtin_popcount(MaskGt(Load(x + i), limit));
  for (; i < n; ++i) count += x[i] > threshold ? 1 : 0;
  return count;
}

Moments MomentsOf(const float* x, int64_t n, float center) {
  const Vec c = Set(center);
  Moments total = {0.0, 0.0, 0};
  for (int64_t b = 0; b < n; b += kMaxBlock) {
    const int64_t end = b + kMaxBlock < n ? b + kMaxBlock : n;
    Vec sum = Set(0.0f);
    Vec square = Set(0.0f);
    for (int64_t i = b; i < end; i += kLanes) {
      const Vec v = i + kLanes <= end ? Load(x + i) : LoadLast(x + i, end - i, kNegInf);
      const uint32_t mask = MaskGt(v, Set(kNegInf));
      const Vec d = Keep(Sub(v, c), mask);
      sum = Add(sum, d);
      square = Fma(d, d, square);
      total.count += __builtin_popcount(mask);
    }
    total.sum += static_cast<double>(ReduceAdd(sum));
    total.sum_square += static_cast<double>(ReduceAdd(square));
  }
  return total;
}

void MaskBits(float* x, int64_t n, const int32_t* words) {
  const Vec none = Set(kNegInf);
  for (int64_t i = 0; i < n; i += 32) {
    const auto word = static_cast<uint32_t>(words[i / 32]);
    if (word == ~0u) continue;
    if (i + 32 <= n) {
#pragma GCC unroll 4
      for (int j = 0; j < 32; j += kLanes) Store(x + i + j, Select(word >> j, Load(x + i + j), none));
    } else {
      for (int64_t j = i; j < n; ++j) {
        if ((word >> (j - i) & 1) == 0) x[j] = kNegInf;
      }
    }
  }
}

}  // namespace
}  // namespace fastllm::ops::cpu
