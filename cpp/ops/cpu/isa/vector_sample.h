// The passes over a row of logits that sampling is made of.
#pragma once

#include "ops/cpu/isa/vector_kernels.h"

namespace fastllm::ops::cpu {
namespace {

constexpr float kNegInf = -__builtin_inff();

// One pass for the maximum, in blocks; only the first block that holds it is looked through for its index.
MaxResult MaxOf(const float* x, int64_t n) {
  constexpr int64_t kBlock = 64 * kLanes;
  float best = kNegInf;
  int64_t best_block = 0;
  uint32_t nan = 0;
  for (int64_t b = 0; b < n; b += kBlock) {
    const int64_t end = b + kBlock < n ? b + kBlock : n;
    Vec m[4] = {Set(kNegInf), Set(kNegInf), Set(kNegInf), Set(kNegInf)};
    int64_t i = b;
    for (; i + 4 * kLanes <= end; i += 4 * kLanes) {
#pragma GCC unroll 4
      for (int u = 0; u < 4; ++u) {
        const Vec v = Load(x + i + u * kLanes);
        nan |= MaskNan(v);
        m[u] = Max(m[u], v);
      }
    }
    for (; i + kLanes <= end; i += kLanes) {
      const Vec v = Load(x + i);
      nan |= MaskNan(v);
      m[0] = Max(m[0], v);
    }
    float block_max = ReduceMax(Max(Max(m[0], m[1]), Max(m[2], m[3])));
    for (; i < end; ++i) {
      if (x[i] != x[i]) nan = 1;
      if (x[i] > block_max) block_max = x[i];
    }
    if (block_max > best) {
      best = block_max;
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

float ExpSum(const float* x, int64_t n, float max, float inv_t) {
  const Vec m = Set(max);
  const Vec s = Set(inv_t);
  Vec sum[2] = {Set(0.0f), Set(0.0f)};
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    sum[0] = Add(sum[0], Exp(Mul(Sub(Load(x + i), m), s)));
    sum[1] = Add(sum[1], Exp(Mul(Sub(Load(x + i + kLanes), m), s)));
  }
  float rest = 0.0f;
  if (i < n) {
    float w[2 * kLanes];
    const int64_t count = n - i;
    ExpScaled(x + i, count, max, inv_t, w);
    for (int64_t j = 0; j < count; ++j) rest += w[j];
  }
  return ReduceAdd(Add(sum[0], sum[1])) + rest;
}

int64_t GatherGe(const float* x, int64_t n, float threshold, float* values, int32_t* ids) {
  const Vec limit = Set(threshold);
  int64_t count = 0;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Vec v = Load(x + i);
    const uint32_t mask = MaskGe(v, limit);
    if (mask != 0) count += StorePacked(values + count, ids + count, v, static_cast<int32_t>(i), mask);
  }
  for (; i < n; ++i) {
    if (x[i] >= threshold) {
      values[count] = x[i];
      ids[count++] = static_cast<int32_t>(i);
    }
  }
  return count;
}

}  // namespace
}  // namespace fastllm::ops::cpu
