// 8-bit floats: conversions against torch's, rows and products against float64, the KV cache.
#include "ops/contract/fp8.h"

#include <bit>
#include <cmath>
#include <limits>

#include "attention_support.h"
#include "ops/contract/kv_cache.h"
#include "ops/cpu/fp8.h"
#include "support.h"

namespace fastllm::ops {
namespace {

using cpu::FloatToFp8;
using cpu::Fp8ToFloat;

struct Case {
  uint32_t bits;
  int code;
};
constexpr Case kCases[] = {
#include "data/fp8_cases.inc"
};

TEST(Fp8, RoundsAsTorchDoes) {
  for (const Case& c : kCases) {
    const float value = std::bit_cast<float>(c.bits);
    EXPECT_EQ(FloatToFp8(value), c.code) << value;
  }
}

TEST(Fp8, CodesAreTheirOwnRounding) {
  for (int code = 0; code < 256; ++code) {
    const float value = Fp8ToFloat(static_cast<uint8_t>(code));
    if ((code & 0x7F) == 0x7F) {
      EXPECT_TRUE(std::isnan(value));
      continue;
    }
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    EXPECT_EQ(value, (code & 0x80) != 0 ? -magnitude : magnitude) << code;
    EXPECT_EQ(FloatToFp8(value), code);
  }
}

TEST(Fp8, WhatDoesNotFit) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const float big : {449.0f, 1e6f, kInf}) {
    EXPECT_EQ(FloatToFp8(big), 0x7E);
    EXPECT_EQ(FloatToFp8(-big), 0xFE);
  }
  EXPECT_EQ(FloatToFp8(std::nanf("")), 0x7F);
  EXPECT_EQ(FloatToFp8(1e-30f), 0);
  EXPECT_EQ(FloatToFp8(-0.0f), 0x80);
}

struct Rows {
  std::vector<uint8_t> q;
  std::vector<float> scale;
  Fp8Rows view() { return {q.data(), scale.data()}; }
  double At(int row, int i, int k) const {
    return double{Fp8ToFloat(q[static_cast<size_t>(row) * k + i])} * scale[row];
  }
};

class Fp8Ops : public ArmTest {
 protected:
  Rows Quantize(const std::vector<float>& x, int rows, int k) const {
    Rows r{std::vector<uint8_t>(x.size()), std::vector<float>(rows)};
    Get<QuantizeFp8Fn>(OpId::kQuantizeFp8)({r.view(), x.data(), rows, k}, {nullptr, 2});
    return r;
  }
};

TEST_P(Fp8Ops, ARowsLargestIs448AndTheRestIsNearest) {
  const int rows = 5, k = 77;
  auto x = RandomNormal(rows * k, 3, 7.0f);
  for (int i = 0; i < k; ++i) x[k + i] = 0.0f;
  const Rows got = Quantize(x, rows, k);
  for (int r = 0; r < rows; ++r) {
    float amax = 0.0f;
    for (int i = 0; i < k; ++i) amax = std::max(amax, std::abs(x[r * k + i]));
    if (amax > 0.0f) {
      EXPECT_FLOAT_EQ(got.scale[r], amax / 448.0f);
    }
    for (int i = 0; i < k; ++i) {
      // Half a step of 2^-3 relative; or of 2^-9 of the scale near zero.
      const double limit = std::max(std::abs(x[r * k + i]) / 16.0, got.scale[r] * 0x1p-10) * 1.0001;
      EXPECT_LE(std::abs(got.At(r, i, k) - x[r * k + i]), limit);
    }
  }
}

TEST_P(Fp8Ops, ARowWithoutANumberSpoilsNoOther) {
  const int k = 32;
  auto x = RandomNormal(3 * k, 4);
  const Rows before = Quantize(x, 3, k);
  x[k + 5] = std::nanf("");
  x[2 * k + 7] = -std::numeric_limits<float>::infinity();
  const Rows after = Quantize(x, 3, k);
  EXPECT_TRUE(std::equal(before.q.begin(), before.q.begin() + k, after.q.begin()));
  EXPECT_TRUE(std::isnan(after.At(1, 5, k)));
  EXPECT_TRUE(std::isnan(after.At(2, 7, k)));
}

TEST_P(Fp8Ops, LinearIsTheProductOfTheRoundedRows) {
  for (const auto& [rows, n, k] : {std::array{1, 5, 16}, std::array{3, 48, 77}, std::array{17, 33, 640}}) {
    auto x = Quantize(RandomNormal(rows * k, 5), rows, k), w = Quantize(RandomNormal(n * k, 6), n, k);
    const auto bias = RandomNormal(n, 7);
    std::vector<float> out(rows * n, std::nanf(""));
    Get<Fp8LinearFn>(OpId::kFp8Linear)({out.data(), x.view(), w.view(), bias.data(), rows, n, k}, {nullptr, 3});
    std::vector<double> want;
    for (int t = 0; t < rows; ++t) {
      for (int o = 0; o < n; ++o) {
        double sum = bias[o];
        for (int i = 0; i < k; ++i) sum += x.At(t, i, k) * w.At(o, i, k);
        want.push_back(sum);
      }
    }
    EXPECT_LE(MaxError(out, want), 2e-5) << rows << " " << n << " " << k;
  }
}

TEST_P(Fp8Ops, KvCacheHoldsRoundedRowsAndAttentionReadsThem) {
  Batch batch({4, 2, 40, 16}, {{70, 3}, {5, 5}, {300, 1}}, {1, 2, 3}, 9);
  PagedAttentionParams p = batch.Params();
  const float scales[2] = {0.02f, 0.5f};
  std::vector<uint8_t> codes[2];
  std::vector<float>* const caches[2] = {&batch.k, &batch.v};
  for (int c = 0; c < 2; ++c) {
    std::vector<float>& cache = *caches[c];
    codes[c].resize(cache.size());
    for (size_t i = 0; i < cache.size(); ++i) {
      codes[c][i] = FloatToFp8(cache[i] * (1.0f / scales[c]));
      cache[i] = Fp8ToFloat(codes[c][i]) * scales[c];
    }
  }
  const auto attend = Get<PagedAttentionFn>(OpId::kPagedAttention, kFeatureGqa);
  attend(p, {nullptr, 2});
  const std::vector<float> want = batch.out;
  p.cache.k = codes[0].data();
  p.cache.v = codes[1].data();
  p.cache.dtype = DType::kF8E4M3;
  p.cache.k_scale = scales[0];
  p.cache.v_scale = scales[1];
  std::fill(batch.out.begin(), batch.out.end(), std::nanf(""));
  attend(p, {nullptr, 2});
  EXPECT_LE(MaxError(batch.out, {want.begin(), want.end()}), 1e-5);
}

TEST_P(Fp8Ops, KvWriteRoundsToTheCache) {
  const int heads = 2, dim = 24, stride = heads * dim, tokens = 4;
  const auto k = RandomNormal(tokens * stride, 1, 3.0f), v = RandomNormal(tokens * stride, 2, 900.0f);
  const std::vector<int64_t> slots = {17, 0, -1, 30};
  std::vector<uint8_t> kc(2 * heads * 16 * dim, 0x55), vc = kc, want_k = kc, want_v = kc;
  KvWriteParams p;
  p.cache = {kc.data(), vc.data(), 2, heads, 16, dim, DType::kF8E4M3, 0.25f, 1.0f};
  p.k = k.data();
  p.v = v.data();
  p.slot_mapping = slots.data();
  p.k_stride = p.v_stride = stride;
  p.num_tokens = tokens;
  Get<KvWriteFn>(OpId::kKvWrite)(p, {});
  for (int t = 0; t < tokens; ++t) {
    for (int i = 0; i < stride && slots[t] >= 0; ++i) {
      const size_t at = ((slots[t] / 16 * heads + i / dim) * 16 + slots[t] % 16) * dim + i % dim;
      want_k[at] = FloatToFp8(k[t * stride + i] * 4.0f);
      want_v[at] = FloatToFp8(v[t * stride + i]);
    }
  }
  EXPECT_EQ(kc, want_k);
  EXPECT_EQ(vc, want_v);
}

FASTLLM_INSTANTIATE_ARMS(Fp8Ops);

}  // namespace
}  // namespace fastllm::ops
