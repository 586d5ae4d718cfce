// The row kernels, written once over the names of simd_<isa>.h, which the including file includes first. Everything is
// in an unnamed namespace: see kernels.h for why.
#pragma once

#include "ops/cpu/kernels.h"

namespace fastllm::ops::cpu {
namespace {

// e^x within 2 units in the last place of float32 over the whole range; subnormal results are right to 1 subnormal
// unit, e^-inf = 0, overflow = inf, NaN stays NaN. x = n ln2 + r with |r| <= ln2/2, e^r by a polynomial of degree 6
// fitted at Chebyshev nodes (relative error 1.1e-8), ln2 in two parts (Cody and Waite 1980). Of the smaller of x and
// `most`.
inline Vec ExpBelow(float most, Vec x) {
  x = Min(Set(most), Max(Set(-110.0f), x));
  const Vec n = Round(Mul(x, Set(1.44269504f)));
  Vec r = NegFma(n, Set(0.693359375f), x);
  r = NegFma(n, Set(-2.12194440e-4f), r);
  Vec p = Fma(Set(1.393368836e-3f), r, Set(8.363205468e-3f));
  p = Fma(p, r, Set(4.166646457e-2f));
  p = Fma(p, r, Set(1.666657682e-1f));
  p = Fma(p, r, Set(5.000000014e-1f));
  p = Add(Fma(p, Mul(r, r), r), Set(1.0f));
  return ScaleByPowerOf2(p, n);
}
inline Vec Exp(Vec x) { return ExpBelow(100.0f, x); }

void RmsNorm(const RmsNormParams& p, int64_t begin, int64_t end) {
  const float* weight = static_cast<const float*>(p.weight);
  const int32_t n = p.hidden;
  const int32_t whole = n / kLanes * kLanes;
  for (int64_t t = begin; t < end; ++t) {
    const float* x = static_cast<const float*>(p.x) + t * n;
    float* out = static_cast<float*>(p.out) + t * n;
    Vec sum[2] = {Set(0.0f), Set(0.0f)};
    if (p.residual != nullptr) {
      float* residual = static_cast<float*>(p.residual) + t * n;
      for (int32_t i = 0; i < whole; i += kLanes) {
        const Vec v = Add(Load(residual + i), Load(x + i));
        Store(residual + i, v);
        sum[(i / kLanes) & 1] = Fma(v, v, sum[(i / kLanes) & 1]);
      }
      if (whole < n) {
        const Vec v = Add(LoadFirst(residual + whole, n - whole), LoadFirst(x + whole, n - whole));
        StoreFirst(residual + whole, v, n - whole);
        sum[0] = Fma(v, v, sum[0]);
      }
      x = residual;
    } else {
      for (int32_t i = 0; i < whole; i += kLanes) {
        const Vec v = Load(x + i);
        sum[(i / kLanes) & 1] = Fma(v, v, sum[(i / kLanes) & 1]);
      }
      if (whole < n) {
        const Vec v = LoadFirst(x + whole, n - whole);
        sum[0] = Fma(v, v, sum[0]);
      }
    }
    const float mean = ReduceAdd(Add(sum[0], sum[1])) / static_cast<float>(n);
    const Vec scale = Set(1.0f / __builtin_sqrtf(mean + p.eps));
    for (int32_t i = 0; i < whole; i += kLanes) Store(out + i, Mul(Mul(Load(x + i), scale), Load(weight + i)));
    if (whole < n) {
      const int rest = n - whole;
      StoreFirst(out + whole, Mul(Mul(LoadFirst(x + whole, rest), scale), LoadFirst(weight + whole, rest)), rest);
    }
  }
}

inline void RotateNeox(float* x, const float* cos, const float* sin, int32_t half) {
  int32_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const Vec a = Load(x + i);
    const Vec b = Load(x + half + i);
    const Vec c = Load(cos + i);
    const Vec s = Load(sin + i);
    Store(x + i, FmaSub(a, c, Mul(b, s)));
    Store(x + half + i, Fma(b, c, Mul(a, s)));
  }
  if (i < half) {
    const int n = half - i;
    const Vec a = LoadFirst(x + i, n);
    const Vec b = LoadFirst(x + half + i, n);
    const Vec c = LoadFirst(cos + i, n);
    const Vec s = LoadFirst(sin + i, n);
    StoreFirst(x + i, FmaSub(a, c, Mul(b, s)), n);
    StoreFirst(x + half + i, Fma(b, c, Mul(a, s)), n);
  }
}

inline void RotateInterleaved(float* x, const float* cos, const float* sin, int32_t half) {
  int32_t i = 0;
  for (; i + kLanes / 2 <= half; i += kLanes / 2) {
    const Vec v = Load(x + 2 * i);
    Store(x + 2 * i, FmaAddSub(v, LoadDoubled(cos + i), Mul(SwapPairs(v), LoadDoubled(sin + i))));
  }
  for (; i < half; ++i) {
    const float a = x[2 * i];
    const float b = x[2 * i + 1];
    x[2 * i] = __builtin_fmaf(a, cos[i], -(b * sin[i]));
    x[2 * i + 1] = __builtin_fmaf(b, cos[i], a * sin[i]);
  }
}

void Rope(const RopeParams& p, int64_t begin, int64_t end) {
  const int32_t half = p.rotary_dim / 2;
  for (int64_t t = begin; t < end; ++t) {
    const float* cos = p.cos_sin + static_cast<int64_t>(p.positions[t]) * p.rotary_dim;
    const float* sin = cos + half;
    for (int which = 0; which < 2; ++which) {
      float* x = which == 0 ? static_cast<float*>(p.q) + t * p.q_stride : static_cast<float*>(p.k) + t * p.k_stride;
      const int32_t heads = which == 0 ? p.num_q_heads : p.num_kv_heads;
      for (int32_t h = 0; h < heads; ++h) {
        if (p.interleaved) {
          RotateInterleaved(x + static_cast<int64_t>(h) * p.head_dim, cos, sin, half);
        } else {
          RotateNeox(x + static_cast<int64_t>(h) * p.head_dim, cos, sin, half);
        }
      }
    }
  }
}

// gate / (1 + e^-gate) up. The exponential ends where Reciprocal() does; what would be below 1e-36 is 0.
inline Vec SiluTimes(Vec gate, Vec up) {
  const Vec least = Set(-87.0f);
  const Vec sigmoid = Reciprocal(Add(Set(1.0f), ExpBelow(87.0f, Sub(Set(0.0f), gate))));
  return Mul(Select(MaskGt(least, gate), Set(0.0f), Mul(gate, sigmoid)), up);
}

void SiluMul(const SiluMulParams& p, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const float* gate = static_cast<const float*>(p.gate_up) + t * 2 * p.n;
    const float* up = gate + p.n;
    float* out = static_cast<float*>(p.out) + t * p.n;
    int32_t i = 0;
    for (; i + kLanes <= p.n; i += kLanes) Store(out + i, SiluTimes(Load(gate + i), Load(up + i)));
    if (i < p.n) {
      const int rest = p.n - i;
      StoreFirst(out + i, SiluTimes(LoadFirst(gate + i, rest), LoadFirst(up + i, rest)), rest);
    }
  }
}

}  // namespace
}  // namespace fastllm::ops::cpu
